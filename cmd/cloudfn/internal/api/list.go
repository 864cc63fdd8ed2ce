package api

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// List says what to read of a list.
type List[T any] struct {
	Path  string
	Key   string // the list's name in the answer
	Query url.Values
	Limit int          // how many things at most; 0 = all
	Keep  func(T) bool // which things; nil = all

	HasNoPages bool // the answer has all of it
}

// Read reads as many pages as it takes.
func (l List[T]) Read(ctx context.Context, c *Client) ([]Item[T], error) {
	items := []Item[T]{}
	for page, err := range l.Pages(ctx, c) {
		if err != nil {
			return nil, err
		}
		items = append(items, page...)
	}
	return items, nil
}

// Pages reads one page after the other, until an error.
func (l List[T]) Pages(ctx context.Context, c *Client) iter.Seq2[[]Item[T], error] {
	query := url.Values{}
	maps.Copy(query, l.Query)
	if !l.HasNoPages {
		query.Set("limit", strconv.Itoa(largestPage))
	}
	if l.Limit > 0 && l.Keep == nil && (l.HasNoPages || l.Limit < largestPage) {
		query.Set("limit", strconv.Itoa(l.Limit))
	}
	return func(yield func([]Item[T], error) bool) {
		left := l.Limit
		for at := withQuery(l.Path, query); at != ""; {
			found, next, err := l.page(ctx, c, at)
			if l.Limit > 0 && len(found) >= left {
				found, next = found[:left], ""
			}
			left -= len(found)
			if !yield(found, err) || err != nil {
				return
			}
			at = next
		}
	}
}

// page reads a page, and where the next one is; "" at the end.
func (l List[T]) page(ctx context.Context, c *Client, at string) (found []Item[T], next string, err error) {
	var page map[string]json.RawMessage
	if err := c.Do(ctx, http.MethodGet, at, nil, &page); err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(page[l.Key], &found); err != nil {
		return nil, "", fmt.Errorf("%s gave an answer that its description does not allow: %w", l.Path, err)
	}
	if l.Keep != nil {
		found = slices.DeleteFunc(found, func(i Item[T]) bool { return !l.Keep(i.Value) })
	}
	if l.HasNoPages {
		return found, "", nil
	}
	if err := json.Unmarshal(page["next"], &next); err != nil { // null leaves ""
		return nil, "", fmt.Errorf("%s: field \"next\" of the answer: %w", l.Path, err)
	}
	return found, next, nil
}
