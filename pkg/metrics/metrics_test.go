package metrics

import (
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// newTest returns metrics of a state.
func newTest(t *testing.T, volumes []publisher.VolumeStatus, objects iter.Seq[manager.ObjectStatus]) *Metrics {
	t.Helper()
	m := New(apiversion.Info{GitVersion: "v1.2.3", GitCommit: "abc", GoVersion: "go1"})
	state := State{
		Volumes: slices.Values(volumes), Objects: objects, MaxBytes: 1 << 20,
		CachedBytes: func() int64 { return 4711 }, MaxCachedBytes: 1 << 19,
	}
	if err := m.Show(state); err != nil {
		t.Fatal(err)
	}
	return m
}

// wantLines scrapes, and expects each of the lines.
func (m *Metrics) wantLines(t *testing.T, lines ...string) {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := "\n" + answer.Body.String()
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, " ")
			name, _, _ = strings.Cut(name, "{")
			t.Errorf("no line %q; there are %q", line, slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return !strings.HasPrefix(l, name) }))
		}
	}
}

func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		object := func(kind volume.Kind, state manager.ObjectState, proven time.Time, followed, stale bool) manager.ObjectStatus {
			return manager.ObjectStatus{Ref: volume.Ref{Kind: kind}, State: state, Since: start, LastConfirmed: proven, Watched: followed, Stale: stale}
		}
		<-time.After(time.Hour)
		ago := func(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }
		m := newTest(t, []publisher.VolumeStatus{
			{Condition: publisher.ConditionCurrent, Bytes: 4096, OpensWatched: true, Shown: map[volume.Ref]volume.Version{{Name: "a"}: {}, {Name: "b"}: {}}, Opened: map[volume.Ref]*publisher.Opened{{Name: "a"}: {State: publisher.OpenNo}}},
			{Condition: publisher.ConditionCurrent, Bytes: 8192, WithoutToken: true},
			{Condition: "RefForbidden"},
		}, slices.Values([]manager.ObjectStatus{
			object(volume.Secret, manager.Present, ago(30), true, true),
			object(volume.Secret, manager.Absent, ago(31), true, true),
			object(volume.Secret, manager.Unknown, time.Time{}, true, true), // for an hour
			object(volume.ConfigMap, manager.Present, ago(100_000), false, false),
			object(volume.ConfigMap, manager.Present, ago(100_000), true, false), // its watch is open
			object(volume.ConfigMap, manager.Denied, ago(20_000), true, true),
		}))
		m.wantLines(t,
			`refvol_volumes{condition="Current"} 2`, `refvol_volumes{condition="RefForbidden"} 1`, `refvol_volumes{condition="RefDeleted"} 0`,
			`refvol_shown_objects{opened="no"} 1`, `refvol_shown_objects{opened="unknown"} 1`, `refvol_shown_objects{opened="yes"} 0`,
			`refvol_volume_bytes 12288`, `refvol_volume_limit_bytes 1.048576e+06`, `refvol_cached_bytes 4711`, `refvol_cached_limit_bytes 524288`, `refvol_volumes_without_token 1`,
			`refvol_objects{kind="Secret",state="present"} 1`, `refvol_objects{kind="Secret",state="denied"} 0`,
			`refvol_objects{kind="ConfigMap",state="denied"} 1`, `refvol_objects{kind="ConfigMap",state="present"} 2`,
			`refvol_stale_objects 4`, `refvol_object_staleness_max_seconds 20000`,
		)
	})
}
