// Command reference makes functions/reference.html, the page at /v1/docs, of functions/openapi.yaml. Run it by `make generate`.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"

	"github.com/yuin/goldmark"
)

const (
	source = "functions/openapi.yaml"
	target = "functions/reference.html"
)

//go:embed page.html
var layout string

//go:embed page.css
var style string

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	page, err := render(text)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	return os.WriteFile(target, page, 0o644) //nolint:gosec // a page for everybody
}

// render makes the page.
func render(text []byte) ([]byte, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, err
	}
	made, err := template.New("page").Parse(layout)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = made.Execute(&out, newPage(doc))
	return out.Bytes(), err
}

// markdown renders a description.
func markdown(text string) template.HTML {
	var out bytes.Buffer
	if err := goldmark.Convert([]byte(text), &out); err != nil {
		return template.HTML(template.HTMLEscapeString(text)) //nolint:gosec // it is escaped
	}
	return template.HTML(bytes.TrimSpace(out.Bytes())) //nolint:gosec // goldmark escapes HTML, and the text is ours
}
