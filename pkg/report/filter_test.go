package report

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// TestFilter: a report of some objects has the volumes that name one of them or may name it, and only the names of the others. What it says
// of these volumes is the same as in the whole report.
func TestFilter(t *testing.T) {
	at := func(version string) volume.Version { return volume.Version{UID: "u", ResourceVersion: version} }
	v := func(pod, name string, bytes int64, refs ...volume.Ref) publisher.VolumeStatus {
		v := publisher.VolumeStatus{
			VolumeID: pod + name, Target: "/k/pods/x/volumes/kubernetes.io~csi/" + name + "/mount", Pod: volume.Pod{Namespace: "shop", Name: pod, UID: types.UID(pod)},
			Condition: publisher.ConditionCurrent, Refs: refs, Bytes: bytes, Record: record.Record{Shown: record.Versions{}},
		}
		for _, ref := range refs {
			v.Shown[ref] = at("8")
		}
		return v
	}
	app, db, other := configMap("app"), configMap("db"), configMap("other")
	secret := volume.Ref{Kind: volume.Secret, Namespace: "shop", Name: "app"}
	w := &world{
		volumes: []publisher.VolumeStatus{
			v("web", "one", 1, other, app), v("web", "two", 1, other), v("web", "three", 1, secret), v("old", "unknown", 1), v("job", "db", 1, db, other), v("job", "other", 1, other),
			v("new", "not-mounted", 0, app, other),
		},
		objects: []manager.ObjectStatus{
			{Ref: app, State: manager.Present, Version: at("8")},
			{Ref: db, State: manager.Present, Version: at("8")},
			{Ref: other, State: manager.Present, Version: at("8"), Stale: true, Since: time.Now().Add(-time.Hour)},
		},
	}
	whole := map[string]status.Volume{}
	for _, v := range w.report(t, 0).Volumes {
		v.Objects = nil
		whole[v.VolumeID] = v
	}
	for _, test := range []struct {
		asked   []volume.Ref
		want    []string
		objects int
		others  string
	}{
		{[]volume.Ref{app}, []string{"new/not-mounted app other", "old/unknown", "web/one app"}, 2, "[{web [two three]} {job [db other]}]"},
		{[]volume.Ref{db, app}, []string{"job/db db", "new/not-mounted app other", "old/unknown", "web/one app"}, 3, "[{web [two three]} {job [other]}]"},
		{[]volume.Ref{configMap("nobody")}, []string{"old/unknown"}, 0, "[{web [one two three]} {job [db other]} {new [not-mounted]}]"},
	} {
		var keys []status.ObjectKey
		for _, ref := range test.asked {
			keys = append(keys, status.ObjectKey{Kind: string(ref.Kind), Namespace: ref.Namespace, Name: ref.Name})
		}
		report := w.report(t, 0, keys...)
		var got []string
		for _, v := range report.Volumes {
			line := v.Pod.Name + "/" + v.Name
			for _, o := range v.Objects {
				line += " " + o.Name
			}
			got = append(got, line)
			v.Objects = nil
			if all := whole[v.VolumeID]; fmt.Sprint(v) != fmt.Sprint(all) {
				t.Errorf("got  %+v\nwant %+v", v, all)
			}
		}
		slices.Sort(got)
		if others := fmt.Sprint(report.Others); !slices.Equal(got, test.want) || len(report.Objects) != test.objects || others != test.others {
			t.Errorf("%v: got %q, %d objects, others %s; want %q, %d, %s", test.asked, got, len(report.Objects), others, test.want, test.objects, test.others)
		}
	}
	if others := w.report(t, 0).Others; others != nil {
		t.Errorf("the whole report has others: %v", others)
	}
}
