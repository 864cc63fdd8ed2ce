package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"
)

func made(t *testing.T) []byte {
	t.Helper()
	t.Chdir("../..")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	page, err := render(text)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// TestReferenceIsUpToDate makes it again, and holds that it is the one that is committed.
func TestReferenceIsUpToDate(t *testing.T) {
	committed, err := os.ReadFile("../../" + target)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made(t), committed) {
		t.Errorf("%s is not what scripts/reference makes of %s: run `make generate`", target, source)
	}
}

// TestPage: each anchor is there once, each link leads to one, nothing comes from elsewhere, and it is not heavy.
func TestPage(t *testing.T) {
	page := made(t)
	anchors := map[string]int{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllSubmatch(page, -1) {
		if anchors[string(m[1])]++; anchors[string(m[1])] > 1 {
			t.Errorf("#%s is there twice", m[1])
		}
	}
	for _, m := range regexp.MustCompile(` href="([^"]*)"`).FindAllSubmatch(page, -1) {
		link := string(m[1])
		if link != "/v1/openapi.yaml" && link != "/console" && (link[0] != '#' || anchors[link[1:]] == 0) {
			t.Errorf("%s leads nowhere", link)
		}
	}
	if found := regexp.MustCompile(`(?i)<script|<link|<img|<iframe|<object| src=| style=| on[a-z]+="|@import|url\(`).Find(page); found != nil {
		t.Errorf("the page has %s", found)
	}
	if n := bytes.Count(page, []byte("<style>")); n != 1 {
		t.Errorf("the page has %d styles: what may be used of it is said by one hash", n)
	}
	text, err := os.ReadFile(source) // made has changed the directory
	if err != nil {
		t.Fatal(err)
	}
	if operations := bytes.Count(text, []byte("operationId:")); len(page) > 6_000*operations {
		t.Errorf("the page has %d bytes for %d operations", len(page), operations)
	}
}

// TestEveryCodeHasItsAdvice, and there is no advice for a code that there is not.
func TestEveryCodeHasItsAdvice(t *testing.T) {
	text, err := os.ReadFile("../../" + source)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	found := problems(doc)
	for _, p := range found {
		if p.Status == "" || p.When == "" || p.Do == "" {
			t.Errorf("%+v says too little", p)
		}
	}
	if len(found) != len(advice) {
		t.Errorf("there are %d codes, and advice for %d", len(found), len(advice))
	}
}
