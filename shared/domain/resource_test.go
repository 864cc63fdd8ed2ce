package domain

import (
	"strings"
	"testing"
)

// TestLoginUser: the image's own user, else that of its distribution. What is no user's name is not passed on.
func TestLoginUser(t *testing.T) {
	t.Parallel()
	for _, tc := range [][3]string{
		{"admin", "ubuntu", "admin"},
		{"", "Ubuntu", "ubuntu"},
		{"", "rhel", "cloud-user"},
		{"", "", ""},
		{"", "of-mine", ""},
		{"$(id)", "debian", "debian"},
		{"-oProxyCommand=x", "", ""},
		{"a b", "", ""},
		{"a\nb", "", ""},
		{"svc.user_1-x", "", "svc.user_1-x"},
		{strings.Repeat("x", 33), "", ""},
	} {
		if got := LoginUser(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%q of %q: got %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
}
