package apperr

import (
	"strings"
)

// Suggestion returns what a wrong name should have been: the known name that is nearest, or all of them.
func Suggestion(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return `did you mean "` + near + `"?`
	}
	return "expected one of " + strings.Join(known, ", ")
}

// Nearest returns the known name that takes the fewest edits, if they are at most a third of the name's length. ""
// means that no name is near.
func Nearest(name string, known []string) string {
	const longest = 64 // of a name: what takes longer to compare is no misspelling
	if len(name) > longest {
		return ""
	}
	best, fewest := "", max(1, len(name)/3)+1
	for _, other := range known {
		if n := edits(strings.ToLower(name), strings.ToLower(other)); n < fewest {
			best, fewest = other, n
		}
	}
	return best
}

// edits counts the insertions, deletions and replacements of bytes that make b of a (Levenshtein).
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for n := range row {
		row[n] = n
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
