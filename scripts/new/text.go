package main

import (
	"fmt"
	"slices"
	"strings"
)

// edit is a change of a file that exists.
type edit struct {
	path  string
	apply func(text string) (string, error)
}

// after inserts a text behind another that occurs once.
func after(place, text string) func(string) (string, error) { return replace(place, place+text) }

// before inserts a text before another that occurs once.
func before(place, text string) func(string) (string, error) { return replace(place, text+place) }

func replace(place, text string) func(string) (string, error) {
	return func(all string) (string, error) {
		if strings.Count(all, place) != 1 {
			return "", fmt.Errorf("%q must occur once", place)
		}
		return strings.Replace(all, place, text, 1), nil
	}
}

// sorted inserts a line among others: before the first of them that comes after it, else behind the last.
func sorted(line string, among func(string) bool) func(string) (string, error) {
	return func(all string) (string, error) {
		lines := strings.SplitAfter(all, "\n")
		place := -1
		for i, other := range lines {
			if !among(other) {
				continue
			}
			if other > line {
				place = i
				break
			}
			place = i + 1
		}
		if place < 0 {
			return "", fmt.Errorf("no line is like %q", strings.TrimSpace(line))
		}
		return strings.Join(slices.Insert(lines, place, line), ""), nil
	}
}
