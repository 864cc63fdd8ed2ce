package httpx

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// ETag identifies one version of a thing (RFC 9110, section 8.8.3).
func ETag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// Versions are the entity tags of a conditional header; nil = the request has none.
type Versions []string

// VersionsOf reads If-Match or If-None-Match.
//
// A proxy that compresses answers marks their tags: nginx makes `"3"` to `W/"3"`, Apache httpd to `"3-gzip"`, and Jetty
// to `"3--gzip"`. A weak tag never matches by RFC 9110, section 13.1.1. Ours do: the version in them is of what is
// stored, whatever was done to its bytes on the way, and a client behind such a proxy can send no other.
func VersionsOf(r *http.Request, header string) (all Versions) {
	given := strings.Join(r.Header.Values(header), ",")
	if given == "" {
		return nil
	}
	for tag := range strings.SplitSeq(given, ",") {
		tag = strings.TrimSpace(tag)
		if version, isOurs := strings.CutPrefix(strings.TrimPrefix(tag, "W/"), `"`); isOurs {
			version, _, _ = strings.Cut(strings.TrimSuffix(version, `"`), "-")
			tag = `"` + version + `"`
		}
		all = append(all, tag)
	}
	return all
}

// Has reports whether a version that is stored is among them.
func (v Versions) Has(version int64) bool {
	return slices.Contains(v, "*") || slices.Contains(v, ETag(version))
}

// IfMatch reports whether a version is one that the request expects. Without the header any version is.
func IfMatch(r *http.Request) func(version int64) bool {
	expected := VersionsOf(r, "If-Match")
	return func(version int64) bool { return expected == nil || expected.Has(version) }
}
