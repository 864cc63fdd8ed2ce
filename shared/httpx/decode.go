package httpx

import (
	"encoding/json"
	"errors"
	"strings"
)

// huma takes "." and "[" in a path for the begin of a step. In keys of the body noncharacters stand for them, until the
// path is shown.
var (
	marked   = strings.NewReplacer(".", "\uFDD0", "[", "\uFDD1")
	unmarked = strings.NewReplacer("\uFDD0", ".", "\uFDD1", "[")
)

// decode is how huma reads JSON: first into an any, which it validates, and then into the type. Its errors repeat no
// value.
func decode(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // a number that is too large for its type
		return errors.New("has a number that is out of range: " + mismatch.Field)
	}
	if tree, ok := into.(*any); ok && err == nil {
		markKeys(*tree)
	}
	return err
}

// markKeys marks the keys of all objects in a value.
func markKeys(value any) {
	switch value := value.(type) {
	case []any:
		for _, entry := range value {
			markKeys(entry)
		}
	case map[string]any:
		var dotted []string
		for key, entry := range value {
			if markKeys(entry); strings.ContainsAny(key, ".[") {
				dotted = append(dotted, key)
			}
		}
		for _, key := range dotted {
			value[marked.Replace(key)] = value[key]
			delete(value, key)
		}
	}
}
