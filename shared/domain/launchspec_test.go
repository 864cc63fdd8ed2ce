package domain

import "testing"

func TestInstanceName(t *testing.T) {
	t.Parallel()
	if one, of := InstanceName("web", 0, 1), InstanceName("web", 2, 3); one != "web" || of != "web-3" {
		t.Errorf("got %s and %s", one, of)
	}
}
