package httpx

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

type base = huma.Context

// call is one request on its way through huma.
type call struct {
	base
	request  *http.Request
	query    url.Values
	body     []byte
	key      string         // of the request, if its operation takes one
	attempt  *attempt       // at a request with a key
	faults   []apperr.Field // what read found wrong
	unread   error          // why the body is not usable at all
	err      error          // the outcome, instead of an answer
	response *Response      // the outcome of Serve
}

type callKey struct{}

func of(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Context implements huma.Context.
func (c *call) Context() context.Context {
	return context.WithValue(c.base.Context(), callKey{}, c)
}

// Query implements huma.Context.
func (c *call) Query(name string) string { return c.query.Get(name) }

// Header implements huma.Context. read has checked the content type, and answers are JSON whatever the request accepts.
func (c *call) Header(name string) string {
	switch name {
	case "Content-Type":
		return jsonType
	case "Accept":
		return ""
	}
	return c.base.Header(name)
}

// BodyReader implements huma.Context.
func (c *call) BodyReader() io.Reader { return bytes.NewReader(c.body) }

// SetReadDeadline implements huma.Context. The deadline is Edge's.
func (c *call) SetReadDeadline(time.Time) error { return nil }

// read takes in the query and the body, more strictly than huma does.
func read(ctx huma.Context, next func(huma.Context)) {
	c, op := of(ctx.Context()), ctx.Operation()
	c.readQuery(op)
	if isIdempotent(op) {
		c.readKey()
	}
	if op.RequestBody != nil && (op.RequestBody.Required || c.request.ContentLength != 0) {
		c.read()
	}
	next(ctx)
}

func (c *call) readQuery(op *huma.Operation) {
	var names, booleans []string
	for _, p := range op.Parameters {
		switch {
		case p.In != "query":
			continue
		case p.Schema.Type == huma.TypeBoolean:
			booleans = append(booleans, p.Name)
		}
		names = append(names, p.Name)
	}
	c.query, c.faults = parseQuery(c.request, names)
	for _, name := range booleans { // huma takes 1 and T for true
		if given := c.query.Get(name); given != "" && given != "true" && given != "false" {
			c.faults = append(c.faults, apperr.Field{Field: name, Detail: validation.MsgExpectedBoolean})
		}
	}
}

// read takes a body only if every reader of JSON takes it for the same. huma gets none otherwise: it would decode it.
func (c *call) read() {
	if c.body, c.unread = readMedia(c.request); c.unread == nil {
		c.unread = c.check()
	}
	if c.unread != nil {
		c.body = nil
	}
}

func (c *call) check() error {
	var syntax json.RawMessage
	if len(bytes.TrimSpace(c.body)) == 0 {
		return syntaxError(io.EOF)
	}
	if err := json.Unmarshal(c.body, &syntax); err != nil {
		return syntaxError(err)
	}
	faults, err := scan(c.body)
	c.faults = append(c.faults, faults...)
	return err
}
