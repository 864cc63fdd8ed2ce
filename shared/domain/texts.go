package domain

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Texts that go to OpenStack. The tables of its services are usually in MySQL's utf8mb3, which has no characters of
// four bytes: Nova accepts them and then loses the server's creation, Cinder and Glance fail. CheckStorable is the rule
// for all of them, and the other checks include it.

// maxStorable is the last character that takes three bytes in UTF-8.
const maxStorable = '\uFFFF'

// Unstorable says which character of a text OpenStack's tables cannot hold; "" = none.
func Unstorable(text string) string {
	for _, r := range text {
		if r > maxStorable || r == 0 {
			return fmt.Sprintf("must not contain %+q: OpenStack stores only characters from U+0001 to U+FFFF", r)
		}
	}
	return ""
}

// Stripped is a text as a service keeps it that strips it, as Python does: Cinder names and descriptions, Barbican the
// payloads of create calls.
func Stripped(text string) string {
	return strings.TrimFunc(text, func(r rune) bool { return unicode.IsSpace(r) || '\x1c' <= r && r <= '\x1f' })
}

// CSVCell is a text for a cell of CSV. An apostrophe is put before what a spreadsheet would take for a formula; numbers
// stay as they are.
func CSVCell(text string) string {
	if text == "" || !strings.ContainsRune("=+-@\t\r\n", rune(text[0])) {
		return text
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return text
	}
	return "'" + text
}

// CheckStorable fails on text that OpenStack's tables cannot hold.
func CheckStorable(field, value string) error {
	if detail := Unstorable(value); detail != "" {
		return apperr.InvalidField(field, detail)
	}
	return nil
}

// CheckAllStorable finds the texts of a value, as encoding/json decodes it, that OpenStack's tables cannot hold.
func CheckAllStorable(field string, value any) (faults []apperr.Field) {
	switch value := value.(type) {
	case string:
		if detail := Unstorable(value); detail != "" {
			faults = append(faults, apperr.Field{Field: field, Detail: detail})
		}
	case []any:
		for n, entry := range value {
			faults = append(faults, CheckAllStorable(fmt.Sprintf("%s[%d]", field, n), entry)...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			at := field + "." + name
			if detail := Unstorable(name); detail != "" {
				faults = append(faults, apperr.Field{Field: at, Detail: detail})
			}
			faults = append(faults, CheckAllStorable(at, value[name])...)
		}
	}
	return faults
}

// EqualInTables returns the index of the first other text that OpenStack's tables may take for the same; -1 = none.
// They ignore case, accents and spaces at the end, and depending on their collation have ß equal to s or ss.
func EqualInTables(text string, others []string) int {
	for n, other := range others {
		for _, sharpS := range []string{"s", "ss"} {
			if inTables(text, sharpS) == inTables(other, sharpS) {
				return n
			}
		}
	}
	return -1
}

func inTables(text, sharpS string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(text))
	return strings.TrimRight(strings.ReplaceAll(text, "ß", sharpS), " ")
}

// CheckText fails on text that is empty, too long, or has control characters or characters that cannot be stored.
func CheckText(field, value string, longest int) error {
	if value == "" {
		return apperr.InvalidField(field, "must not be empty")
	}
	if utf8.RuneCountInString(value) > longest {
		return apperr.InvalidField(field, fmt.Sprintf("must have at most %d characters", longest))
	}
	for _, r := range value {
		if unicode.IsControl(r) {
			return apperr.InvalidField(field, "must not contain control characters")
		}
	}
	return CheckStorable(field, value)
}

// CheckPrintable fails on text that is empty, too long, or has characters that Nova rejects in names and descriptions.
func CheckPrintable(field, value string, longest int) error {
	if err := CheckText(field, value, longest); err != nil {
		return err
	}
	for _, r := range value {
		if !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Zs) {
			return apperr.InvalidField(field,
				fmt.Sprintf("must not contain %+q: Nova accepts only printable characters up to U+FFFE", r))
		}
	}
	return nil
}

// CheckTags fails on tags of servers that Nova rejects, on those by which servers are found, and on those that Nova's
// tables take for the same: a server with two of those is never built, and cannot be deleted.
func CheckTags(field string, tags []string) (faults []apperr.Field) {
	for n, tag := range tags {
		at := fmt.Sprintf("%s[%d]", field, n)
		if err := checkTag(at, tag); err != nil {
			faults = append(faults, apperr.As(err).Fields...)
		} else if same := EqualInTables(tag, tags[:n]); same >= 0 && tags[same] == tag {
			faults = append(faults, apperr.Field{Field: at, Detail: "is given twice"})
		} else if same >= 0 {
			faults = append(faults, apperr.Field{Field: at, Detail: fmt.Sprintf(
				"is the same as %q for OpenStack, which ignores case, accents and spaces at the end", tags[same])})
		}
	}
	return faults
}

func checkTag(field, tag string) error {
	err := CheckText(field, tag, maxTagLength)
	switch {
	case err != nil:
		return err
	case strings.ContainsAny(tag, ",/"):
		return apperr.InvalidField(field, "must not contain a comma or a slash")
	case IsDots(tag):
		return apperr.InvalidField(field, "must not be . or .., which would change the path of a call")
	case IsOwnTag(tag):
		return apperr.InvalidField(field, "must not begin with cloudfn or be a UUID: servers are found by such tags")
	}
	return nil
}

// CheckName fails on names of servers, key pairs, security groups and zones that Nova rejects (the format `name` of
// nova.api.validation.parameter_types, the same from 2.1 to 2.93).
func CheckName(field, value string, longest int) error {
	if err := CheckPrintable(field, value, longest); err != nil {
		return err
	}
	first, _ := utf8.DecodeRuneInString(value)
	last, _ := utf8.DecodeLastRuneInString(value)
	if unicode.Is(unicode.Zs, first) || unicode.Is(unicode.Zs, last) {
		return apperr.InvalidField(field, "must not begin or end with a space")
	}
	return nil
}

// CheckMetadata fails on metadata of servers that Nova rejects or cannot store.
func CheckMetadata(field string, metadata map[string]string) (faults []apperr.Field) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		at := strings.TrimSuffix(field+"."+key, ".")
		if detail := metadataKeyFault(key); detail != "" {
			faults = append(faults, apperr.Field{Field: at, Detail: detail})
		}
		if detail := Unstorable(metadata[key]); detail != "" {
			faults = append(faults, apperr.Field{Field: at, Detail: detail})
		}
	}
	return faults
}

// metadataKeyFault says why Nova rejects a key of metadata; "" = it does not.
func metadataKeyFault(key string) string {
	if key == "" || len(key) > MaxNameLength {
		return fmt.Sprintf("must have a key of 1 to %d characters", MaxNameLength)
	}
	for _, r := range key {
		if r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_:. ", r) {
			return fmt.Sprintf(
				"must not contain %+q: Nova accepts ASCII letters, digits, and - _ : . space in a key", r)
		}
	}
	return ""
}

// Deref is the value of a field that may be absent; zero without it.
func Deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
