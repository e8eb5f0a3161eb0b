package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

func configMap(name string) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: "shop", Name: name}
}

func seq[T any](all *[]T) iter.Seq[T] {
	return func(yield func(T) bool) { slices.Values(*all)(yield) }
}

// world is what the publisher and the manager know.
type world struct {
	volumes []publisher.VolumeStatus
	objects []manager.ObjectStatus
	missing []string
	refused []status.Refusal
	unready []string
}

func (w *world) reporter() *Reporter {
	return &Reporter{
		Driver: "csi.refvol.dev", Node: "node-1", Version: "v1",
		Volumes: seq(&w.volumes), Objects: seq(&w.objects), Refused: func() []status.Refusal { return slices.Clone(w.refused) }, MissingRights: func() []string { return w.missing }, NotReady: func() []string { return w.unready },
	}
}

func (w *world) report(t *testing.T, resync time.Duration, objects ...status.ObjectKey) *status.Report {
	t.Helper()
	r := w.reporter()
	r.ResyncInterval = resync
	return read(t, r.Collect(objects))
}

func read(t *testing.T, stream *status.Stream) *status.Report {
	t.Helper()
	var body bytes.Buffer
	must.Do(t, stream.Write(&body))
	return must.Get(status.Read(&body))(t)
}

func volumeAsJSON(t *testing.T, v *status.Volume) (text string) {
	t.Helper()
	values := []any{v}
	for _, o := range v.Objects {
		values = append(values, o.Object)
	}
	for _, value := range values {
		line := must.Get(json.Marshal(value))(t)
		text += string(line) + "\n"
	}
	return text
}

// TestReport: everything that is known about a volume and its objects is in the report.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		<-time.After(time.Hour)
		version := volume.Version{UID: "u1", ResourceVersion: "812"}
		w := &world{
			volumes: []publisher.VolumeStatus{
				{VolumeID: "v2", Target: "/k/pods/uid/volumes/kubernetes.io~csi/other/mount", Pod: volume.Pod{UID: "uid"}, Condition: publisher.ConditionUnknown, Since: time.Now()},
				{
					VolumeID: "v1", Target: "/k/pods/uid/volumes/kubernetes.io~csi/settings/mount",
					Pod:       volume.Pod{Namespace: "shop", Name: "web", UID: "uid", ServiceAccount: "sa"},
					Condition: "RefForbidden", Reason: "one\ntwo", Since: start, Bytes: 4096, WithoutToken: true,
					Refs: []volume.Ref{configMap("app"), configMap("db"), configMap("gone"), configMap("canary")},
					Record: record.Record{
						Shown:  map[volume.Ref]volume.Version{configMap("app"): version, configMap("db"): {}},
						Absent: map[volume.Ref]volume.Version{configMap("canary"): version},
					},
					Revisions: map[volume.Ref]volume.Revision{configMap("app"): "4f2a91c"},
					Withdrawn: map[volume.Ref]bool{configMap("db"): true, configMap("app"): true}, // the second one cannot be
					Opened: map[volume.Ref]*opened.Object{
						configMap("app"): {State: opened.No, Since: start, Unopened: []string{"a"}, Count: 1}, configMap("db"): {State: opened.Yes},
					},
					OpensWatched: true,
				},
			},
			objects: []manager.ObjectStatus{
				{Ref: configMap("app"), State: manager.Present, Version: version, Since: start, LastConfirmed: start.Add(time.Minute), Watched: true},
				{Ref: configMap("db"), State: manager.Denied, Err: errors.New("no\nway"), Since: start},
				{Ref: configMap("canary"), State: manager.Present, Version: version, Since: start, Canary: "10%"},
			},
			missing: []string{"list secrets"}, unready: []string{"registration: not yet"},
			refused: []status.Refusal{{VolumeID: "v8", At: start}, {VolumeID: "v9", At: start.Add(time.Minute), Message: strings.Repeat("x", 2*maxReason)}},
		}
		got := w.report(t, 0)
		if got.APIVersion != status.APIVersion || got.Kind != status.Kind || got.Driver != "csi.refvol.dev" || got.Node != "node-1" || got.Version != "v1" ||
			!got.KnowsRollout || !got.ObservedAt.Equal(time.Now()) || !slices.Equal(got.MissingRights, w.missing) || !slices.Equal(got.NotReady, w.unready) {
			t.Errorf("got %+v", got)
		}
		if len(got.Refused) != 2 || got.Refused[0].VolumeID != "v9" || len(got.Refused[0].Message) != maxReason {
			t.Errorf("the failed publishes are %+v, want the latest first", got.Refused)
		}
		const want = `{"volumeID":"v1","name":"settings","pod":{"namespace":"shop","name":"web","uid":"uid"},` +
			`"condition":"RefForbidden","reason":"one\ntwo","abnormal":true,"since":"2000-01-01T00:00:00Z","bytes":4096,"withoutToken":true,"objects":[` +
			`{"object":0,"shown":0,"opened":"no","unopened":["a"],"unopenedCount":1,"shownSince":"2000-01-01T00:00:00Z"},{"object":1,"withdrawn":true},{"object":2},{"object":3,"absent":0}]}` + "\n" +
			`{"kind":"ConfigMap","namespace":"shop","name":"app","state":"present","followed":true,"provenAt":"2000-01-01T00:01:00Z","versions":[{"uid":"u1","resourceVersion":"812","revision":"4f2a91c"}]}` + "\n" +
			`{"kind":"ConfigMap","namespace":"shop","name":"db","state":"denied","reason":"no\nway","followed":false}` + "\n" +
			`{"kind":"ConfigMap","namespace":"shop","name":"gone","state":"unknown","reason":"the plugin does not ask for it","followed":false}` + "\n" +
			`{"kind":"ConfigMap","namespace":"shop","name":"canary","state":"present","followed":false,"canary":"10%","versions":[{"uid":"u1","resourceVersion":"812"}]}` + "\n"
		expect.Equal(t, "the volume", volumeAsJSON(t, &got.Volumes[0]), want)
		if second := got.Volumes[1]; second.VolumeID != "v2" || second.Abnormal || second.Objects == nil {
			t.Errorf("got %+v", second)
		}
		if w.volumes = nil; w.report(t, 0).Volumes == nil {
			t.Error("without volumes the list is missing")
		}
	})
}

// TestReceipts: what is known about the opens of an object's files.
func TestReceipts(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		watched bool
		opened  *opened.Object
		want    string
	}{
		"opened":                    {true, &opened.Object{State: opened.Yes, At: at}, `"openedAt":"2026-01-01T00:00:00Z"`},
		"without a file":            {true, &opened.Object{State: opened.Yes}, `"openedAt":"0001-01-01T00:00:00Z"`}, // since it is shown
		"may have been missed":      {true, &opened.Object{State: opened.Unknown, Unopened: []string{"a"}, Count: 9}, `"opened":"unknown","unopened":["a"],"unopenedCount":9`},
		"not known yet":             {true, nil, `"opened":"unknown"`},
		"a volume can't be watched": {true, &opened.Object{State: opened.Unsupported, Unopened: []string{"a"}, Count: 1}, `"opened":"unsupported"`},
		"nothing is watched":        {false, nil, `"opened":"unsupported"`},
	} {
		ref := configMap("app")
		v := publisher.VolumeStatus{Refs: []volume.Ref{ref}, Record: record.Record{Shown: map[volume.Ref]volume.Version{ref: {UID: "u"}}}, OpensWatched: test.watched}
		if test.opened != nil {
			v.Opened = map[volume.Ref]*opened.Object{ref: test.opened}
		}
		expect.Has(t, name, volumeAsJSON(t, &(&world{volumes: []publisher.VolumeStatus{v}}).report(t, 0).Volumes[0]), `"shown":0,`+test.want+`}`)
	}
}

// TestObjectsOfAccounts: an object that is read with pods' rights is the one of the pod's own account.
func TestObjectsOfAccounts(t *testing.T) {
	pod := volume.Pod{Namespace: "shop", Name: "web", ServiceAccount: "sa"}
	w := &world{
		volumes: []publisher.VolumeStatus{{Pod: pod, Refs: []volume.Ref{configMap("app")}}},
		objects: []manager.ObjectStatus{
			{Account: volume.ServiceAccount{Namespace: "shop", Name: "other"}, Ref: configMap("app"), State: manager.Absent},
			{Account: pod.Account(), Ref: configMap("app"), State: manager.Present},
			{Account: volume.ServiceAccount{Namespace: "other", Name: "sa"}, Ref: configMap("app"), State: manager.Denied},
		},
	}
	if got := w.report(t, 0).Volumes[0].Objects[0]; got.State != "present" || got.ServiceAccount != "shop/sa" {
		t.Errorf("got %+v", got.Object)
	}
	w.objects = slices.Delete(w.objects, 1, 2)
	expect.Equal(t, "another account's object", w.report(t, 0).Volumes[0].Objects[0].State, "unknown")
}

// TestAbnormal: temporary states are given time, and objects that cannot change or are watched need no proof. Ages are in seconds. An
// object that was never proven has the age -1, and was first referenced an hour ago.
func TestAbnormal(t *testing.T) {
	type object struct {
		proven int
		stale  bool
	}
	const (
		soon, limit, late = 299, 300, 301
		never             = -1
		hour              = 3600
	)
	for name, test := range map[string]struct {
		condition    publisher.Condition
		reason       string
		age          int
		withoutToken bool
		objects      []object
		resync       time.Duration
		want         string
	}{
		"current":                    {"Current", "", hour, false, []object{{soon, true}, {limit, true}}, 0, ""},
		"silent":                     {"Current", "", hour, false, []object{{soon, true}, {late, true}}, 0, `ConfigMap "shop/1": nothing has proven since 1999-12-31T23:54:59Z that it has not changed`},
		"all silent":                 {"Current", "", hour, false, []object{{late, true}, {400, true}, {late, true}}, 0, `ConfigMap "shop/1": nothing has proven since 1999-12-31T23:53:20Z that it has not changed, and the same of 2 more`},
		"never proven":               {"Current", "", hour, false, []object{{never, true}}, 0, `ConfigMap "shop/0": nothing has proven since 1999-12-31T23:00:00Z that it has not changed`},
		"a quiet watch":              {"Current", "", hour, false, []object{{1 << 20, false}}, 0, ""},
		"polled":                     {"Current", "", hour, false, []object{{420, true}}, time.Minute, ""},
		"polled in vain":             {"Current", "", hour, false, []object{{421, true}}, time.Minute, `ConfigMap "shop/0": nothing has proven since 1999-12-31T23:52:59Z that it has not changed`},
		"no objects":                 {"Current", "", hour, false, nil, 0, ""},
		"no token":                   {"Current", "", 0, true, []object{{0, true}}, 0, "the pod's service account has no usable token, so no change of an object can arrive"},
		"pinned":                     {"Pinned", "", 1 << 20, false, []object{{1 << 20, true}}, 0, ""},
		"unknown":                    {"Unknown", "not taken over", limit, true, nil, 0, ""},
		"unknown for long":           {"Unknown", "not taken over", late, true, nil, 0, "not taken over"},
		"publishing":                 {"Publishing", "", limit, true, []object{{never, true}}, 0, ""},
		"publishing for long":        {"Publishing", "", late, false, nil, 0, "the condition should have passed: it is Publishing since 1999-12-31T23:54:59Z"},
		"stale":                      {"Stale", "an object is not synced", limit, true, []object{{never, true}}, 0, ""},
		"split":                      {"Split", "two revisions", limit, false, []object{{soon, true}}, 0, ""},
		"split for long":             {"Split", "two revisions", late, false, []object{{soon, true}}, 0, "two revisions"},
		"a publish waits":            {"Split", "two revisions", 60, false, nil, 0, ""},
		"a publish waits for long":   {"Split", "two revisions", 61, false, nil, 0, "two revisions"},
		"stale for long":             {"Stale", "an object is not synced", late, false, nil, 0, "an object is not synced"},
		"fault":                      {"RefDeleted", "it is gone", 0, false, nil, 0, "it is gone"},
		"a condition of another one": {"Newer", "", 0, false, nil, 0, "Newer"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ago := func(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }
			v := publisher.VolumeStatus{Condition: test.condition, Reason: test.reason, Since: ago(test.age), WithoutToken: test.withoutToken, Bytes: int64(len(test.objects))}
			w := &world{}
			for i, o := range test.objects {
				ref := configMap(string(rune('0' + i)))
				known := manager.ObjectStatus{Ref: ref, State: manager.Present, Since: ago(hour), Watched: true, Stale: o.stale}
				if o.proven != never {
					known.LastConfirmed = ago(o.proven)
				}
				w.objects = append(w.objects, known)
				v.Refs = append(v.Refs, ref)
			}
			w.volumes = append(w.volumes, v)
			got := w.report(t, test.resync).Volumes[0]
			expect.Equal(t, name+": abnormal, and why", fmt.Sprint(got.Abnormal, " ", got.Reason), fmt.Sprint(test.want != "", " ", cmp.Or(test.want, test.reason)))
		})
	}
}

// TestDocumentedPatience: docs/status.md and docs/limits.md say when a volume is abnormal.
func TestDocumentedPatience(t *testing.T) {
	doclines.Says(t, "../../docs/status.md",
		fmt.Sprintf("`Unknown`, `Publishing`, `Stale`, `Split`: after %v minutes. `Split` while a publish waits: after a minute of that publish.", patience.Minutes()))
	doclines.Says(t, "../../docs/limits.md", fmt.Sprintf("with `Cache` and `Get` a stale one after two resyncs more | %v s |", patience.Seconds()))
}
