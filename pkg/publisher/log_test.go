package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

func TestDescribe(t *testing.T) {
	app, db := configMap("app"), secret("db")
	const want = "ConfigMap shop/app at 7, Secret shop/db not shown"
	if got := describe([]volume.Ref{app, db}, record.Versions{app: {ResourceVersion: "7"}}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The log says which objects an update is for, and how they have changed.
func TestWhatChanged(t *testing.T) {
	app, db := configMap("app"), secret("db")
	before := record.Versions{app: {UID: "1", ResourceVersion: "7"}, db: {UID: "2", ResourceVersion: "8"}}
	const removed = "its files were removed"
	for want, test := range map[string]struct {
		before, now record.Versions
		withdrawn   bool
	}{
		"the files differed from what they should show":                                               {before: before, now: before},
		"Secret shop/db changed, it was at 8":                                                         {before: before, now: record.Versions{app: before[app], db: {UID: "2", ResourceVersion: "9"}}},
		"Secret shop/db was deleted and created again":                                                {before: before, now: record.Versions{app: before[app], db: {UID: "3", ResourceVersion: "9"}}},
		"Secret shop/db was not shown before":                                                         {before: record.Versions{app: before[app]}, now: before},
		"Secret shop/db was deleted, " + removed:                                                      {before: before, now: record.Versions{app: before[app]}},
		"Secret shop/db is refused to the pod, or may share a file with a refused object: " + removed: {before: before, now: record.Versions{app: before[app]}, withdrawn: true},
		"ConfigMap shop/app was deleted, " + removed + ", Secret shop/db was deleted, " + removed:     {before: before},
		"ConfigMap shop/app was not shown before, Secret shop/db is refused to the pod, or may share a file with a refused object: " + removed: {
			before: record.Versions{db: before[db]}, now: record.Versions{app: before[app]}, withdrawn: true,
		},
	} {
		now := &files{Record: record.Record{Shown: test.now}, withdrawn: map[volume.Ref]bool{db: test.withdrawn}}
		if got := now.whatChanged([]volume.Ref{app, db}, test.before); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A text about many objects names some of them, and how many more there are.
func TestEnumerate(t *testing.T) {
	for n, want := range map[int]string{maxDescribed: "", maxDescribed + 1: ", 1 more", maxDescribed + 700: ", 700 more"} {
		refs := make([]volume.Ref, n)
		for i := range refs {
			refs[i] = configMap(fmt.Sprint("app", i))
		}
		got := enumerate(refs, func(volume.Ref) string { return "changed" })
		if count := strings.Count(got, " changed"); count != maxDescribed || !strings.HasSuffix(got, "changed"+want) {
			t.Errorf("%d are named: %s", count, got)
		}
	}
}
