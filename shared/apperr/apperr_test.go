package apperr

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestCodeOf(t *testing.T) {
	t.Parallel()
	inner := New(Conflict, "no")
	for name, tc := range map[string]struct {
		err       error
		want      Code
		retryable bool
	}{
		"nil":                    {nil, "", false},
		"one of ours":            {inner, Conflict, false},
		"one of ours, wrapped":   {fmt.Errorf("x: %w", inner), Conflict, false},
		"one of ours, joined":    {errors.Join(errors.New("x"), inner), Conflict, false},
		"the outermost decides":  {Wrap(Unavailable, inner, "unavailable"), Unavailable, true},
		"any other is internal":  {errors.New("x"), Internal, true},
		"a context's end too":    {context.DeadlineExceeded, Internal, true},
		"a wrong field":          {InvalidField("name", "is empty"), Invalid, false},
		"OpenStack asks to wait": {New(RateLimited, "wait"), RateLimited, true},
		"too old a cloud":        {New(Unsupported, "old"), Unsupported, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := CodeOf(tc.err); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := Retryable(tc.err); got != tc.retryable {
				t.Errorf("retryable is %t", got)
			}
		})
	}
}

// TestTheCauseIsForTheLogOnly holds what may be shown apart from what may not.
func TestTheCauseIsForTheLogOnly(t *testing.T) {
	t.Parallel()
	cause := errors.New("dial 10.0.0.1")
	err := error(Wrap(Unavailable, cause, "%s is unavailable", "nova"))
	if e := As(err); e.Message != "nova is unavailable" || err.Error() != "nova is unavailable: dial 10.0.0.1" ||
		!errors.Is(err, cause) {
		t.Errorf("message %q, text %q", e.Message, err)
	}
	if e := As(cause); e.Message != "internal error" || e.Code != Internal || !errors.Is(e, cause) {
		t.Errorf("a foreign error is shown as %q", e.Message)
	}
	if e := InvalidField("count", "is 0", "1", "2"); e.Message != "count: is 0" || len(e.Fields) != 1 ||
		len(e.Fields[0].Allowed) != 2 {
		t.Errorf("got %+v", e)
	}
	// What was surely not sent is known through every wrapping.
	if !errors.Is(fmt.Errorf("x: %w", Wrap(Unavailable, errors.Join(ErrNotSent, cause), "unavailable")), ErrNotSent) {
		t.Error("ErrNotSent is lost")
	}
}

// TestRejected: an answer that is lost, or comes from between, says nothing of what was done.
func TestRejected(t *testing.T) {
	t.Parallel()
	for code, want := range map[Code]bool{
		Invalid: true, Forbidden: true, Conflict: true, NotFound: true, Unauthenticated: true, RateLimited: true,
		Internal: false, BadGateway: false, Unavailable: false, Timeout: false, ClientGone: false,
	} {
		if got := Rejected(New(code, "no")); got != want {
			t.Errorf("%s: %t", code, got)
		}
	}
	if !Rejected(Wrap(Unavailable, ErrNotSent, "nova cannot be reached")) || Rejected(nil) {
		t.Error("what was not sent is rejected, and what was done is not")
	}
}

// TestNearest finds what a misspelled name stands for, and nothing for an entirely different one.
func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"count", "flavor", "image", "key_name", "networks"}
	for name, want := range map[string]string{
		"counts": "count", "Key_name": "key_name", "falvor": "flavor", "netwoks": "networks", "shade": "", "": "",
		"size": "", "keyname": "key_name", "imgae": "image",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q is near to %q, want %q", name, got, want)
		}
	}
	if got := Suggestion("shade", known); got != "expected one of count, flavor, image, key_name, networks" {
		t.Error(got)
	}
	if got := Suggestion("counts", known); got != `did you mean "count"?` {
		t.Error(got)
	}
}
