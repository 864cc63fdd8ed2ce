package stats

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
)

func inlineSVG(t *testing.T, page []byte) []byte {
	t.Helper()
	found := regexp.MustCompile(`(?s)<svg .*</svg>`).Find(page)
	if found == nil {
		t.Fatal("the page has no chart")
	}
	return found
}

// element is an element of an XML document, with the text directly in it.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func parse(t *testing.T, document []byte) (root element) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(document))
	if err := d.Decode(&root); err != nil {
		t.Fatalf("not well-formed: %v", err)
	}
	if token, err := d.Token(); !errors.Is(err, io.EOF) && strings.TrimSpace(fmt.Sprintf("%s", token)) != "" {
		t.Fatalf("after the image there is %v, %v", token, err)
	}
	return root
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e element) is(class string) bool {
	return class == "" || strings.Contains(" "+e.attr("class")+" ", " "+class+" ")
}

// find lists the elements below with the name, and the class if it is not "".
func (e element) find(name, class string) (found []element) {
	for _, child := range e.Children {
		if child.XMLName.Local == name && child.is(class) {
			found = append(found, child)
		}
		found = append(found, child.find(name, class)...)
	}
	return found
}
