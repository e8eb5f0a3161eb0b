package status

import (
	"strings"
	"testing"
	"time"
)

// TestOldEnvironmentInTheTable: for the environment volume, the reason says that no container has started with what it shows.
func TestOldEnvironmentInTheTable(t *testing.T) {
	at, shown := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), &Version{UID: "u", ResourceVersion: "2"}
	object := func(opened string) VolumeObject {
		o := VolumeObject{Object: &Object{Kind: "Secret", Namespace: "shop", Name: "db"}, Shown: shown, Opened: opened, ShownSince: &at}
		if opened == "" {
			o.OpenedAt = &at
		}
		return o
	}
	notShown := object("no")
	notShown.Shown = nil
	const text = "the containers run with older variables, or have not started, since 2026-01-01T00:00:00Z"
	for _, test := range []struct {
		volume Volume
		want   string
	}{
		{Volume{Name: EnvironmentVolume, Objects: []VolumeObject{object(""), object("no")}}, text},
		{Volume{Name: EnvironmentVolume, Reason: "stale", Objects: []VolumeObject{object("no")}}, "stale"},
		{Volume{Name: EnvironmentVolume, Objects: []VolumeObject{object(""), object("unknown"), object("unsupported"), notShown}}, "-"},
		{Volume{Name: "settings", Objects: []VolumeObject{object("no")}}, "-"},
	} {
		if got := (Table{NoHeaders: true}).text(t, sample(test.volume)); !strings.HasSuffix(got, "  "+test.want+"\n") {
			t.Errorf("got\n%s\nwant the end %q", got, test.want)
		}
	}
}
