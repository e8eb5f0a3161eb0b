package report

import (
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

func configMap(name string) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: "shop", Name: name}
}

// seq yields the elements that exist when it is iterated.
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

// report returns a report as a reader gets it.
func (w *world) report(t *testing.T, resync time.Duration) *status.Report {
	t.Helper()
	r := w.reporter()
	r.ResyncInterval = resync
	body, err := json.Marshal(r.Report())
	if err != nil {
		t.Fatal(err)
	}
	read, err := status.Read(strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	return read
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
					Refs:      []volume.Ref{configMap("app"), configMap("db"), configMap("gone")},
					Shown:     map[volume.Ref]volume.Version{configMap("app"): version, configMap("db"): {}},
					Withdrawn: map[volume.Ref]bool{configMap("db"): true, configMap("app"): true}, // the second one cannot be
					Opened: map[volume.Ref]*publisher.Opened{
						configMap("app"): {State: publisher.OpenNo, Since: start, Unopened: []string{"a"}, Count: 1}, configMap("db"): {State: publisher.OpenYes},
					},
					OpensWatched: true,
				},
			},
			objects: []manager.ObjectStatus{
				{Ref: configMap("app"), State: manager.Present, Version: version, Since: start, LastConfirmed: start.Add(time.Minute), Watched: true},
				{Ref: configMap("db"), State: manager.Denied, Err: errors.New("no\nway"), Since: start},
			},
		}
		got := w.report(t, 0)
		if got.APIVersion != status.APIVersion || got.Kind != status.Kind || got.Driver != "csi.refvol.dev" || got.Node != "node-1" || got.Version != "v1" || !got.ObservedAt.Equal(time.Now()) {
			t.Errorf("got %+v", got)
		}
		first, err := json.Marshal(got.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		const want = `{"volumeID":"v1","name":"settings","pod":{"namespace":"shop","name":"web","uid":"uid"},` +
			`"condition":"RefForbidden","reason":"one\ntwo","abnormal":true,"since":"2000-01-01T00:00:00Z","bytes":4096,"withoutToken":true,"objects":[` +
			`{"kind":"ConfigMap","namespace":"shop","name":"app","shown":{"uid":"u1","resourceVersion":"812"},"opened":"no","unopened":["a"],"unopenedCount":1,"shownSince":"2000-01-01T00:00:00Z","state":"present","provenAt":"2000-01-01T00:01:00Z","followed":true},` +
			`{"kind":"ConfigMap","namespace":"shop","name":"db","withdrawn":true,"state":"denied","reason":"no\nway","followed":false},` +
			`{"kind":"ConfigMap","namespace":"shop","name":"gone","state":"unknown","reason":"the plugin does not ask for it","followed":false}]}`
		if string(first) != want {
			t.Errorf("got  %s\nwant %s", first, want)
		}
		if second := got.Volumes[1]; second.VolumeID != "v2" || second.Unhealthy || second.Objects == nil {
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
		opened  *publisher.Opened
		want    string
	}{
		"opened":                    {true, &publisher.Opened{State: publisher.OpenYes, At: at}, `"openedAt":"2026-01-01T00:00:00Z"`},
		"without a file":            {true, &publisher.Opened{State: publisher.OpenYes}, `"openedAt":"0001-01-01T00:00:00Z"`}, // since it is shown
		"may have been missed":      {true, &publisher.Opened{State: publisher.OpenUnknown, Unopened: []string{"a"}, Count: 9}, `"opened":"unknown","unopened":["a"],"unopenedCount":9`},
		"not known yet":             {true, nil, `"opened":"unknown"`},
		"a volume can't be watched": {true, &publisher.Opened{State: publisher.OpenUnsupported, Unopened: []string{"a"}, Count: 1}, `"opened":"unsupported"`},
		"nothing is watched":        {false, nil, `"opened":"unsupported"`},
	} {
		ref := configMap("app")
		v := publisher.VolumeStatus{Refs: []volume.Ref{ref}, Shown: map[volume.Ref]volume.Version{ref: {UID: "u"}}, OpensWatched: test.watched}
		if test.opened != nil {
			v.Opened = map[volume.Ref]*publisher.Opened{ref: test.opened}
		}
		got, err := json.Marshal((&world{volumes: []publisher.VolumeStatus{v}}).report(t, 0).Volumes[0].Objects[0])
		if err != nil || !strings.Contains(string(got), `"resourceVersion":""},`+test.want+`,"state"`) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
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
	if got := w.report(t, 0).Volumes[0].Objects[0].State; got != "present" {
		t.Errorf("got %s", got)
	}
	w.objects = slices.Delete(w.objects, 1, 2)
	if got := w.report(t, 0).Volumes[0].Objects[0].State; got != "unknown" {
		t.Errorf("another account's object: got %s", got)
	}
}
