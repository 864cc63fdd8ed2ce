package managed

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// suggest adds the nearest name to the faults of fields that the spec of a kind does not have.
func suggest(kind domain.Kind, faults []apperr.Field) {
	for n := range faults {
		f := &faults[n]
		if f.Detail != validation.MsgUnexpectedProperty {
			continue
		}
		t := specTypes[kind]
		if strings.HasPrefix(f.Field, "spec.listeners[") {
			t = reflect.TypeFor[ListenerSpec]()
		}
		f.Detail = fmt.Sprintf("is not a field of %s", kind)
		if name := nearest(f.Field[strings.LastIndex(f.Field, ".")+1:], fieldNames(t)); name != "" {
			f.Detail += fmt.Sprintf("; the nearest one is %q", name)
		}
	}
}

// fieldNames are the JSON names of a type's fields.
func fieldNames(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// nearest is the name that takes the fewest changes of letters, if they are less than half; "" = none.
func nearest(given string, names []string) (name string) {
	fewest := (len(given) + 1) / 2
	for _, one := range names {
		if n := distance(strings.ToLower(given), one); n < fewest {
			name, fewest = one, n
		}
	}
	return name
}

// distance is how many letters have to be added, removed or replaced to make one text of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for n := range row {
		row[n] = n
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
