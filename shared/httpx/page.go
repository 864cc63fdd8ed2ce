package httpx

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
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

// pageKey is in the metadata of an operation that answers with pages of a list: the list's field.
const pageKey = "page"

// nextPageOf is where an answer's type has the URL of the next page, and the field of its list; nil = it is no page.
func nextPageOf[O any]() (next []int, list string) {
	body, hasBody := reflect.TypeFor[O]().FieldByName("Body")
	if !hasBody || body.Type.Kind() != reflect.Struct {
		return nil, ""
	}
	field, isPage := body.Type.FieldByName("Next")
	if !isPage || field.Type != reflect.TypeFor[*string]() {
		return nil, ""
	}
	for f := range body.Type.Fields() {
		if f.Type.Kind() == reflect.Slice && list == "" {
			list, _, _ = strings.Cut(f.Tag.Get("json"), ",")
		}
	}
	return append(slices.Clone(body.Index), field.Index...), list
}

// describeRead adds what the answers of reads have in common.
func describeRead(op *huma.Operation) {
	found := op.Responses[strconv.Itoa(http.StatusOK)]
	if op.Metadata[pageKey] != nil {
		found.Headers["Link"] = &huma.Header{Ref: "#/components/headers/Link"}
	}
	if op.Method != http.MethodGet || op.Security != nil || found == nil || found.Content[jsonType] == nil ||
		found.Headers["ETag"] != nil {
		return
	}
	found.Headers["ETag"] = &huma.Header{Ref: "#/components/headers/ContentETag"}
	op.Parameters = append(op.Parameters, &huma.Param{Ref: "#/components/parameters/IfNoneMatch"})
	op.Responses[strconv.Itoa(http.StatusNotModified)] = &huma.Response{Ref: "#/components/responses/Unchanged"}
}

// entries are those of an operation's list. A client may choose their fields.
type entries struct {
	list   string
	fields []string
}

// describeFields gives an operation that answers with pages the parameter fields; nil = its answer has no
// entries with fields.
func describeFields(op *huma.Operation, schemas huma.Registry) *entries {
	list, _ := op.Metadata[pageKey].(string)
	if list == "" {
		return nil
	}
	schema := op.Responses[strconv.Itoa(http.StatusOK)].Content[jsonType].Schema
	for _, step := range []func(){
		func() { schema = schema.Properties[list] }, func() { schema = schema.Items }, func() {},
	} {
		if schema.Ref != "" {
			schema = schemas.SchemaFromRef(schema.Ref)
		}
		step()
	}
	out := &entries{list: list, fields: slices.Sorted(maps.Keys(schema.Properties))}
	if len(out.fields) == 0 {
		return nil
	}
	isAbsent := func(name string) bool { return !slices.Contains(out.fields, name) }
	example := slices.DeleteFunc([]string{"id", "host", "name", "status", "project_id"}, isAbsent)
	op.Parameters = append(op.Parameters, &huma.Param{
		Name: "fields", In: "query", Explode: new(false), Example: example[:min(len(example), 2)],
		Description: "The fields of the entries, separated by commas; all by default. " +
			"Others are absent, also required ones.",
		Schema: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}},
	})
	return out
}

// check rejects the first field that the entries of the list do not have.
func (e entries) check(query url.Values) []apperr.Field {
	if !query.Has("fields") {
		return nil
	}
	for given := range strings.SplitSeq(query.Get("fields"), ",") {
		if !slices.Contains(e.fields, given) {
			detail := fmt.Sprintf("%q is no field of the entries", text(given, 64))
			return []apperr.Field{{Field: "fields", Detail: detail, Allowed: e.fields}}
		}
	}
	return nil
}

// pick leaves only the chosen fields, separated by commas, in the entries of a page.
func (e entries) pick(page []byte, chosen string) []byte {
	names := strings.Split(chosen, ",")
	var read map[string]json.RawMessage
	var all []map[string]json.RawMessage
	if json.Unmarshal(page, &read) != nil || json.Unmarshal(read[e.list], &all) != nil {
		return page
	}
	for _, entry := range all {
		maps.DeleteFunc(entry, func(name string, _ json.RawMessage) bool { return !slices.Contains(names, name) })
	}
	answer := map[string]any{}
	for name, value := range read {
		answer[name] = value
	}
	answer[e.list] = all
	var out bytes.Buffer
	if encode(&out, answer) != nil {
		return page
	}
	return out.Bytes()
}

// Link is the header of a page that leads to the next one (RFC 8288); "" for none.
func Link(next *string) string {
	if next == nil {
		return ""
	}
	return "<" + *next + `>; rel="next"`
}
