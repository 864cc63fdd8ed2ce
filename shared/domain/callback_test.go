package domain

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestCallbackHistories: whatever its owner asks for, and whatever its receiver does in between, a callback only takes
// the moves of the table, and is verified only by its receiver.
func TestCallbackHistories(t *testing.T) {
	t.Parallel()
	statuses := []CallbackStatus{CallbackPending, CallbackVerified, CallbackSuspended, CallbackGone}
	for _, s := range statuses {
		if len(CallbackTransitions[s]) == 0 || slices.Contains(CallbackTransitions[s], s) {
			t.Errorf("from %s it can become %v", s, CallbackTransitions[s])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		c := Callback{Status: CallbackPending, URL: "a"}
		consented := "" // to which URL
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before := c
			if rapid.Bool().Draw(t, "the receiver's turn") {
				if c.Status = rapid.SampledFrom(CallbackTransitions[c.Status]).Draw(t,
					"status"); c.Status == CallbackVerified {
					consented = c.URL
				}
				continue
			}
			var change CallbackChange
			if rapid.Bool().Draw(t, "with a URL") {
				url := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "URL")
				change.URL = &url
			}
			if rapid.Bool().Draw(t, "with a status") {
				status := rapid.SampledFrom([]CallbackStatus{CallbackSuspended, CallbackVerified}).Draw(t, "wanted")
				change.Status = &status
			}
			asks, err := c.Apply(change)
			switch {
			case err != nil && (apperr.CodeOf(err) != apperr.Conflict || before.Status != CallbackGone):
				t.Fatalf("%+v to %+v: %v", before, change, err)
			case err != nil:
				c = before
			case c.Status != before.Status && !slices.Contains(CallbackTransitions[before.Status], c.Status):
				t.Fatalf("%s became %s", before.Status, c.Status)
			case c.Status == CallbackVerified && (consented != c.URL || asks):
				t.Fatalf("it is verified at %s, and the receiver consented at %s", c.URL, consented)
			case asks && c.Status != CallbackPending, c.Status == CallbackPending && before.Status != CallbackPending &&
				!asks:
				t.Fatalf("%s to %s asks: %t", before.Status, c.Status, asks)
			case (c.Reason != "") != (c.Status == CallbackSuspended) && c.Status != before.Status:
				t.Fatalf("%s, because %q", c.Status, c.Reason)
			}
		}
	})
}
