// Package bench measures cloudfn side by side with what else one would do, in one run on one machine, and
// prints what it found as tables. README.md says what each line means.
//
// Nothing here fails for being slow: times are shown, only counts are asserted. The measurements are Go tests
// behind the build tag "bench"; `make bench` runs them.
package bench
