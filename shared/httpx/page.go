package httpx

import (
	"context"
	"net/url"
	"reflect"
	"slices"
)

// PageRequest is the part of a list's request that bounds it. Such requests embed it, and have a marker of their own.
type PageRequest struct {
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The number of entries of a page, at most."`
}

// Page is a part of a list, and the URL of the next one; nil at the end.
type Page[T any] struct {
	Items []T
	Next  *string
}

// ReadPage reads a page of at most limit entries. It reads one entry more, which shows that another page follows. The
// next page begins after the marker of the last entry.
func ReadPage[T any](
	ctx context.Context, limit int, read func(limit int) ([]T, error), marker func(T) string,
) (Page[T], error) {
	found, err := read(limit + 1)
	page := Page[T]{Items: found}
	if err == nil && len(found) > limit {
		page.Items, page.Next = found[:limit], NextPage(ctx, marker(found[limit-1]))
	}
	return page, err
}

// NextPage is the URL of the next page: the same request with another marker.
func NextPage(ctx context.Context, marker string) *string { return next(*RequestOf(ctx).URL, marker) }

// next is the URL of the next page: the same request with another marker.
func next(u url.URL, marker string) *string {
	query := u.Query()
	query.Set("marker", marker)
	next := u.EscapedPath() + "?" + query.Encode()
	return &next
}

// pageKey is in the metadata of an operation that answers with pages of a list.
const pageKey = "page"

// nextPageOf is where an answer's type has the URL of the next page; nil = it is no page of a list.
func nextPageOf[O any]() []int {
	body, hasBody := reflect.TypeFor[O]().FieldByName("Body")
	if !hasBody || body.Type.Kind() != reflect.Struct {
		return nil
	}
	next, isPage := body.Type.FieldByName("Next")
	if !isPage || next.Type != reflect.TypeFor[*string]() {
		return nil
	}
	return append(slices.Clone(body.Index), next.Index...)
}

// Link is the header of a page that leads to the next one (RFC 8288); "" for none.
func Link(next *string) string {
	if next == nil {
		return ""
	}
	return "<" + *next + `>; rel="next"`
}
