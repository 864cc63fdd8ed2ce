package openstack

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// TestLoginsLeakNothing: a thousand logins in another cloud, and as many regions of it, leave no goroutine behind. It
// is not parallel, because it counts those of the whole process. The other cloud is a fake: a thousand logins would
// take the sandbox minutes.
func TestLoginsLeakNothing(t *testing.T) { //nolint:paralleltest // see above
	theirs := loginStub(t, member)
	cloud := newStub(t).cloud(t, nil)
	login := func(region string) {
		if _, _, err := cloud.At(theirs.url, region).Credential(t.Context(), "c1", "s"); err != nil {
			t.Fatal(err)
		}
	}
	login("r1")
	before := runtime.NumGoroutine()
	for n := range 1000 {
		login("r1")
		cloud.At(theirs.url, fmt.Sprint("region", n))
	}
	var after int
	for range 600 { // connections that are being closed end soon
		if after = runtime.NumGoroutine(); after <= before+5 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if after > before+5 {
		t.Errorf("there were %d goroutines, and are %d", before, after)
	}
	if cloud.At(theirs.url, "r1") != cloud.At(theirs.url+"/v3", "r1") ||
		cloud.At(theirs.url, "r1") == cloud.At("", "r1") {
		t.Error("one cloud and region is not one Cloud")
	}
	if cloud.others.Len() > maxClouds {
		t.Errorf("%d clouds are kept", cloud.others.Len())
	}
}

// TestCatalogsAreBelievedForAWhile only.
func TestCatalogsAreBelievedForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	cache := newCatalogCache()
	cache.now = func() time.Time { return now }
	cache.Add("p1", catalog{})
	now = now.Add(catalogTTL)
	if _, ok := cache.Get("p1"); !ok {
		t.Error("it was forgotten too soon")
	}
	now = now.Add(time.Second)
	if _, ok := cache.Get("p1"); ok {
		t.Error("it is believed for too long")
	}
}
