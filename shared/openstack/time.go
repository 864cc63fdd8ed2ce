package openstack

import (
	"encoding/json"
	"fmt"
	"time"
)

// keystoneTime reads every form in which Keystone writes a moment: with a zone or without one (then it means UTC), and
// with microseconds or whole seconds. One token can have both forms: a Keystone worker writes the end of a token that
// an application credential cuts short without a zone when it made the token itself, and with one when it decoded the
// token. null is the zero time.
type keystoneTime struct{ time.Time }

// keystoneLayouts take fractions of a second, too, as time.Parse does.
var keystoneLayouts = []string{time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05", time.DateTime}

// UnmarshalJSON implements json.Unmarshaler.
func (k *keystoneTime) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == nil {
		*k = keystoneTime{}
		return nil
	}
	for _, layout := range keystoneLayouts {
		if at, err := time.Parse(layout, *text); err == nil {
			*k = keystoneTime{at.UTC()}
			return nil
		}
	}
	return fmt.Errorf("time %q: expected a form such as 2006-01-02T15:04:05.000000Z or 2006-01-02T15:04:05", *text)
}
