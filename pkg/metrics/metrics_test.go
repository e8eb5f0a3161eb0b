package metrics

import (
	"errors"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

func newTest(t *testing.T, volumes []publisher.VolumeStatus, objects iter.Seq[manager.ObjectStatus]) *Metrics {
	t.Helper()
	m := New(apiversion.Info{GitVersion: "v1.2.3", GitCommit: "abc", GoVersion: "go1"})
	state := State{
		Volumes: slices.Values(volumes), Objects: objects, MaxBytes: 1 << 20,
		CachedBytes: func() int64 { return 4711 }, MaxCachedBytes: 1 << 19,
	}
	must.Do(t, m.Show(state))
	return m
}

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
			{Condition: publisher.ConditionCurrent, Bytes: 4096, OpensWatched: true, Record: record.Record{Shown: map[volume.Ref]volume.Version{{Name: "a"}: {}, {Name: "b"}: {}}}, Opened: map[volume.Ref]*opened.Object{{Name: "a"}: {State: opened.No}}},
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

// Writes and answers to reviews are counted by their results, and a result with an error counts as an error. Each result is there from the start.
func TestResults(t *testing.T) {
	failure := errors.New("failed")
	m := New(apiversion.Info{})
	m.wantLines(t,
		`refvol_writes_total{result="changed"} 0`, `refvol_writes_total{result="unchanged"} 0`, `refvol_writes_total{result="error"} 0`,
		`refvol_authorizations_total{result="allowed"} 0`, `refvol_authorizations_total{result="denied"} 0`, `refvol_authorizations_total{result="error"} 0`, `refvol_log_lines_left_out_total 0`,
	)
	m.LogLineLeftOut()
	for _, write := range []struct {
		times   int
		changed bool
		bytes   int64
		err     error
	}{{1, false, 0, nil}, {2, true, 100, nil}, {3, true, 10, failure}, {4, false, 0, failure}} {
		for range write.times {
			m.RecordWrite(write.changed, write.bytes, write.err)
		}
	}
	for _, review := range []struct {
		times   int
		allowed bool
		err     error
	}{{1, true, nil}, {2, false, nil}, {3, false, failure}, {4, true, failure}} {
		for range review.times {
			m.Reviewed(review.allowed, review.err)
		}
	}
	m.wantLines(t,
		`refvol_writes_total{result="unchanged"} 1`, `refvol_writes_total{result="changed"} 2`, `refvol_writes_total{result="error"} 7`,
		`refvol_write_bytes_total 230`, `refvol_log_lines_left_out_total 1`,
		`refvol_authorizations_total{result="allowed"} 1`, `refvol_authorizations_total{result="denied"} 2`, `refvol_authorizations_total{result="error"} 7`,
	)
}

// Conditions of readiness and rights have a gauge each, which follows what is known at the scrape. None can be added twice.
func TestReadinessAndRights(t *testing.T) {
	m := New(apiversion.Info{})
	broken, missing := errors.New("broken"), []string{"get of pods"}
	for name, condition := range map[string]func() error{"fine": func() error { return nil }, "api": func() error { return broken }} {
		must.Do(t, m.ShowReadiness(name, condition))
	}
	rights, lacks := []string{"list of secrets", "get of pods", "watch of secrets"}, func() []string { return missing }
	must.Do(t, m.ShowRights(rights, lacks))
	m.wantLines(t,
		`refvol_ready{condition="fine"} 1`, `refvol_ready{condition="api"} 0`,
		`refvol_rights{right="list of secrets"} 1`, `refvol_rights{right="get of pods"} 0`, `refvol_rights{right="watch of secrets"} 1`,
	)
	broken, missing = nil, []string{"list of secrets", "watch of secrets"}
	m.wantLines(t,
		`refvol_ready{condition="fine"} 1`, `refvol_ready{condition="api"} 1`,
		`refvol_rights{right="list of secrets"} 0`, `refvol_rights{right="get of pods"} 1`, `refvol_rights{right="watch of secrets"} 0`,
	)
	for want, err := range map[string]error{
		"register the metric of condition api: ":         m.ShowReadiness("api", func() error { return nil }),
		"register the metric of right list of secrets: ": m.ShowRights(rights, lacks),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("a second time: got %v, want %s", err, want)
		}
	}
}

// Waiting requests are reported, and each reason from the start.
func TestRequestsThatWait(t *testing.T) {
	m := New(apiversion.Info{})
	state := func() requests.State {
		return requests.State{UnderWay: 3, Waiting: 7, Closed: map[requests.Reason]int{requests.Unauthorized: 2}}
	}
	must.Do(t, m.ShowRequests(state))
	m.wantLines(t,
		`refvol_requests_paused_identities{reason="no-credential"} 0`, `refvol_requests_paused_identities{reason="unauthorized"} 2`,
		`refvol_requests_paused_identities{reason="unavailable"} 0`, `refvol_requests_paused_identities{reason="unreachable"} 0`,
		`refvol_requests_under_way 3`, `refvol_requests_waiting 7`,
	)
	if err := m.ShowRequests(state); err == nil || !strings.HasPrefix(err.Error(), "register the metrics of requests: ") {
		t.Errorf("a second time: %v", err)
	}
}
