package postgres_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// noError ends the test at an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns what a call returns, and ends the test at its error.
func must[A any](a A, err error) func(testing.TB) A {
	return func(t testing.TB) A {
		t.Helper()
		noError(t, err)
		return a
	}
}

// must2 is must for a call with two results.
func must2[A, B any](a A, b B, err error) func(testing.TB) (A, B) {
	return func(t testing.TB) (A, B) {
		t.Helper()
		noError(t, err)
		return a, b
	}
}

// errOf is the error of a call.
func errOf[A any](_ A, err error) error { return err }

// errOf2 is the error of a call with two results.
func errOf2[A, B any](_ A, _ B, err error) error { return err }

// wantCode reports an error that has another code.
func wantCode(t testing.TB, what string, err error, want apperr.Code) {
	t.Helper()
	if got := apperr.CodeOf(err); got != want {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

// wantError reports an error that is not the wanted one.
func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// concurrently calls do n times concurrently, and waits for all calls.
func concurrently(n int, do func(n int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// wantValue reports a value in the database that is not the wanted one. The format has a verb for the value.
func wantValue[T comparable](t testing.TB, conn testkit.Querier, want T, format, sql string, args ...any) {
	t.Helper()
	if got := testkit.Scalar[T](t, conn, sql, args...); got != want {
		t.Errorf(format, got)
	}
}
