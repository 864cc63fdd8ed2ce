package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
)

// Item is one thing: its JSON as the API gave it, and the fields that this client knows.
type Item[T any] struct {
	Value T
	Raw   json.RawMessage
	ETag  string // its version, when the answer is this one thing
}

func (i *Item[T]) setETag(etag string) { i.ETag = etag }

// UnmarshalJSON implements json.Unmarshaler.
func (i *Item[T]) UnmarshalJSON(text []byte) error {
	i.Raw = append(json.RawMessage(nil), text...)
	return json.Unmarshal(text, &i.Value)
}

// Get reads one thing.
func Get[T any](ctx context.Context, c *Client, path string, query url.Values) (Item[T], error) {
	return Send[T](ctx, c, http.MethodGet, withQuery(path, query), nil)
}

// Send sends a request with body as its JSON (nil = none). An answer without a body gives an empty Item.
func Send[T any](ctx context.Context, c *Client, method, path string, body any) (item Item[T], err error) {
	err = c.Do(ctx, method, path, body, &item)
	return item, err
}

// What SendIfMatch takes besides a version.
const (
	Absent = "absent" // the thing must not exist
	Any    = "any"    // whatever its version is
)

// SendIfMatch sends a request that fails if the version of the thing is another one by now. It sends nothing
// without a version: then the ETag of what was read has been lost on the way.
func SendIfMatch[T any](
	ctx context.Context, c *Client, method, path, etag string, body any,
) (item Item[T], err error) {
	if etag == "" {
		return item, errors.New("nothing was changed: the answer before had no ETag, so this could overwrite what " +
			"others change. A proxy before cloudfn drops it: it must let ETag and If-Match pass")
	}
	err = c.do(ctx, request{method: method, path: path, ifMatch: etag}, body, &item)
	return item, err
}

// largestPage is the most things that a page may hold.
const largestPage = 1000

// List says what to read of a list.
type List[T any] struct {
	Path  string
	Key   string // the list's name in the answer
	Query url.Values
	Limit int          // how many things at most; 0 = all
	Keep  func(T) bool // which things; nil = all
}

// Read reads as many pages as it takes.
func (l List[T]) Read(ctx context.Context, c *Client) ([]Item[T], error) {
	query := url.Values{}
	maps.Copy(query, l.Query)
	query.Set("limit", strconv.Itoa(largestPage))
	if l.Limit > 0 && l.Limit < largestPage && l.Keep == nil {
		query.Set("limit", strconv.Itoa(l.Limit))
	}
	items := []Item[T]{}
	for next := withQuery(l.Path, query); next != ""; {
		var page map[string]json.RawMessage
		if err := c.Do(ctx, http.MethodGet, next, nil, &page); err != nil {
			return nil, err
		}
		var found []Item[T]
		if err := json.Unmarshal(page[l.Key], &found); err != nil {
			return nil, fmt.Errorf("%s gave an answer that its description does not allow: %w", l.Path, err)
		}
		for _, item := range found {
			if l.Keep != nil && !l.Keep(item.Value) {
				continue
			}
			if items = append(items, item); len(items) == l.Limit {
				return items, nil
			}
		}
		next = "" // what null leaves, which the last page has
		if err := json.Unmarshal(page["next"], &next); err != nil {
			return nil, fmt.Errorf("%s: field \"next\" of the answer: %w", l.Path, err)
		}
	}
	return items, nil
}
