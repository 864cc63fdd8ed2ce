// Package exit holds the program's exit codes, and the error that carries one.
package exit

import "fmt"

// The exit codes, as the help lists them.
const (
	Done        = 0
	Failed      = 1
	Usage       = 2
	Denied      = 3
	NotFound    = 4
	Conflict    = 5
	Unavailable = 6
	Interrupted = 130
)

// Error is an error with the exit code that it ends the program with.
type Error struct {
	Code int
	Err  error
}

// Errorf makes an Error. It wraps what %w stands for.
func Errorf(code int, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Usagef makes an Error of wrong usage or input.
func Usagef(format string, args ...any) error { return Errorf(Usage, format, args...) }

// Failedf makes an Error of something that was begun and failed.
func Failedf(format string, args ...any) error { return Errorf(Failed, format, args...) }

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the error without its code.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode is the code that the program ends with.
func (e *Error) ExitCode() int { return e.Code }
