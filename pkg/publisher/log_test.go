package publisher

import (
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

// The log says which objects an update is for.
func TestWhatChanged(t *testing.T) {
	app, db := configMap("app"), secret("db")
	before := record.Versions{app: {UID: "1", ResourceVersion: "7"}, db: {UID: "2", ResourceVersion: "8"}}
	now := &files{shown: record.Versions{app: {UID: "1", ResourceVersion: "9"}, db: before[db]}}
	for want, shown := range map[string]record.Versions{
		"ConfigMap shop/app changed, it was at 7":       before,
		"the files differed from what they should show": now.shown,
	} {
		if got := now.whatChanged([]volume.Ref{app, db}, shown); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
