package report

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// large adds a pod with volumes that all name the same objects. Each object has a name of some bytes that begins with prefix, and one file
// that nobody has opened.
func (w *world) large(pod, prefix string, volumes, objects, name int) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var refs []volume.Ref
	for i := range objects {
		ref := configMap(fmt.Sprintf("%s-%04d-", prefix, i))
		ref.Name += strings.Repeat("x", name-len(ref.Name))
		refs = append(refs, ref)
		w.objects = append(w.objects, manager.ObjectStatus{Ref: ref, State: manager.Present, Watched: true, LastConfirmed: at, Version: volume.Version{UID: types.UID(strings.Repeat("u", 36)), ResourceVersion: "123456789"}})
	}
	for i := range volumes {
		v := publisher.VolumeStatus{
			VolumeID: fmt.Sprintf("csi-%064d", i), Target: fmt.Sprintf("/k/pods/x/volumes/kubernetes.io~csi/volume-%d/mount", i),
			Pod: volume.Pod{Namespace: "shop", Name: pod, UID: types.UID(pod)}, Condition: publisher.ConditionCurrent, Since: at, Bytes: 4096, Refs: refs,
			Record: record.Record{Shown: record.Versions{}}, Opened: map[volume.Ref]*opened.Object{}, OpensWatched: true,
		}
		for j, ref := range refs {
			v.Shown[ref] = w.objects[len(w.objects)-objects+j].Version
			v.Opened[ref] = &opened.Object{State: opened.No, Unopened: []string{"file"}, Count: 1, Since: at}
		}
		w.volumes = append(w.volumes, v)
	}
}

// meter counts what is written, and calls half once, when half of a size has been written.
type meter struct {
	written, size int
	half          func()
}

func (m *meter) Write(p []byte) (int, error) {
	if m.written += len(p); m.half != nil && m.written >= m.size/2 {
		m.half()
		m.half = nil
	}
	return len(p), nil
}

// TestMemory: a report of 3 pods (100 in the long form) with 1,024 pairs of volume and object is never held. What it is created from grows with
// the number of objects and volumes, and not with their names.
func TestMemory(t *testing.T) {
	const volumes, objects = 8, 128
	pods := 3
	if os.Getenv("REFVOL_LONG") != "" {
		pods = 100
	}
	for what, name := range map[string]string{"the same objects": "o", "objects of each of 8 volumes": "%d-%d"} {
		w := &world{}
		for pod := range pods {
			for volume := range volumes {
				prefix := name
				if strings.Contains(name, "%") {
					prefix = fmt.Sprintf(name, pod, volume)
				}
				w.large(fmt.Sprint("pod-", pod), prefix, 1, objects, 253)
			}
		}
		whole := &meter{}
		must.Do(t, w.reporter().Collect(nil).Write(whole))
		size := whole.written
		if limit := pods*volumes*objects*112 + len(w.objects)*512 + len(w.volumes)*512; size > limit { // long names count once for each object
			t.Errorf("of %s: %d bytes, want at most %d", what, size, limit)
		}
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		stream := w.reporter().Collect(nil)
		held := heap()
		must.Do(t, stream.Write(&meter{size: size, half: func() { held = max(held, heap()) }}))
		held -= before
		if limit := uint64(len(w.objects)*352 + pods*volumes*objects*20 + len(w.volumes)*1024); held > limit || held > uint64(size)*2/3 {
			t.Errorf("of %s: %d bytes are held for a report of %d, want at most %d", what, held, size, limit)
		}
		runtime.KeepAlive(w)
	}
}

// TestLongTexts: no text is repeated at full length for each object or volume.
func TestLongTexts(t *testing.T) {
	ref := configMap("app")
	v := publisher.VolumeStatus{
		Condition: "VolumeUpdateFailed", Reason: strings.Repeat("ü", 600), Refs: []volume.Ref{ref}, Record: record.Record{Shown: map[volume.Ref]volume.Version{ref: {UID: "u"}}}, OpensWatched: true,
		Opened: map[volume.Ref]*opened.Object{ref: {State: opened.No, Reason: strings.Repeat("r", 2000), Count: 20}},
	}
	for range 20 {
		v.Opened[ref].Unopened = append(v.Opened[ref].Unopened, "a"+strings.Repeat("ü", 2000))
	}
	w := &world{volumes: []publisher.VolumeStatus{v}, objects: []manager.ObjectStatus{{Ref: ref, Err: errors.New(strings.Repeat("e", 1025))}}}
	got := w.report(t, 0).Volumes[0]
	o := got.Objects[0]
	for what, text := range map[string]string{"reason": got.Reason, "reason of opens": got.OpenedReason, "object's reason": o.Reason} {
		if len(text) > 1024 || len(text) < 1020 || !strings.HasSuffix(text, "…") || !utf8.ValidString(text) {
			t.Errorf("the %s has %d bytes: %.20s", what, len(text), text)
		}
	}
	if len(o.Unopened) != 8 || o.UnopenedCount != 20 || len(o.Unopened[7]) != 128 || !strings.HasSuffix(o.Unopened[7], "ü…") {
		t.Errorf("%d paths of %d: %q", len(o.Unopened), o.UnopenedCount, o.Unopened)
	}
	for text, want := range map[string]string{strings.Repeat("e", 1024): strings.Repeat("e", 1024), "": ""} {
		expect.Equal(t, "the text", cut(text, maxReason), want)
	}
}

// shows returns volumes that show an object, one at each version, and the state of that object.
func shows(shown string, o manager.ObjectStatus) *world {
	o.Ref = configMap("app")
	w := &world{objects: []manager.ObjectStatus{o}}
	for version := range strings.SplitSeq(shown, " ") {
		w.volumes = append(w.volumes, publisher.VolumeStatus{
			Condition: "VolumeUpdateFailed", Refs: []volume.Ref{o.Ref},
			Record: record.Record{Shown: map[volume.Ref]volume.Version{o.Ref: {UID: "u", ResourceVersion: version}}},
		})
	}
	return w
}

// TestOlderAnswer: an answer is older than what the manager knows, or than what an earlier process has written.
func TestOlderAnswer(t *testing.T) {
	at := func(version string) volume.Version { return volume.Version{UID: "u", ResourceVersion: version} }
	type answer struct {
		shown string
		known manager.ObjectStatus
		want  string
	}
	row := func(shown string, known manager.ObjectStatus, want string) answer { return answer{shown, known, want} }
	for name, test := range map[string]answer{
		"refused": row("12",
			manager.ObjectStatus{Version: at("12"), OlderAnswer: &manager.OlderAnswer{Object: at("9"), ResourceVersion: "11", Known: "20"}},
			`"olderAnswer":{"object":{"uid":"u","resourceVersion":"9"},"resourceVersion":"11","known":"20"}`),
		"refused, and without the object": row("12",
			manager.ObjectStatus{Version: at("12"), OlderAnswer: &manager.OlderAnswer{ResourceVersion: "11", Known: "20"}},
			`"olderAnswer":{"resourceVersion":"11","known":"20"}`),
		"older than the files": row("12",
			manager.ObjectStatus{Version: at("9")},
			`"olderAnswer":{"object":{"uid":"u","resourceVersion":"9"},"resourceVersion":"9","known":"12"}`),
		"older than the files of two volumes": row("12 9 13 11",
			manager.ObjectStatus{Version: at("9")},
			`"olderAnswer":{"object":{"uid":"u","resourceVersion":"9"},"resourceVersion":"9","known":"13"}`),
		"current":                {"12", manager.ObjectStatus{Version: at("12")}, ""},
		"newer":                  {"9", manager.ObjectStatus{Version: at("12")}, ""},
		"absent":                 {"12", manager.ObjectStatus{}, ""},
		"nothing is shown of it": {"", manager.ObjectStatus{Version: at("12")}, ""},
	} {
		got := volumeAsJSON(t, &shows(test.shown, test.known).report(t, 0).Volumes[0])
		if strings.Contains(got, "olderAnswer") != (test.want != "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestAnUpdateDuringTheReportIsNoOlderAnswer: what the files show is read before the objects, because it may only become newer.
func TestAnUpdateDuringTheReportIsNoOlderAnswer(t *testing.T) {
	w := shows("9", manager.ObjectStatus{Version: volume.Version{UID: "u", ResourceVersion: "9"}})
	r := w.reporter()
	r.Objects = func(yield func(manager.ObjectStatus) bool) {
		yield(w.objects[0])
		w.volumes = shows("12", w.objects[0]).volumes
	}
	if got := read(t, r.Collect(nil)).Volumes[0].Objects[0]; got.OlderAnswer != nil {
		t.Errorf("got %+v", got.OlderAnswer)
	}
}

// TestRevisions: the revision of a version is known if a volume that shows it knows it. A volume for which the version says that a canary does
// not exist knows nothing of it.
func TestRevisions(t *testing.T) {
	ref, version := configMap("app"), volume.Version{UID: "u1", ResourceVersion: "812"}
	shows := func(revisions map[volume.Ref]volume.Revision) publisher.VolumeStatus {
		return publisher.VolumeStatus{Record: record.Record{Shown: record.Versions{ref: version}}, Revisions: revisions}
	}
	known, unknown, none := shows(map[volume.Ref]volume.Revision{ref: "r1"}), shows(map[volume.Ref]volume.Revision{}), shows(nil)
	absent := publisher.VolumeStatus{Record: record.Record{Absent: record.Versions{ref: version}}}
	for name, test := range map[string]struct {
		volumes []publisher.VolumeStatus
		want    volume.Revision
	}{
		"known":              {[]publisher.VolumeStatus{unknown, known}, "r1"},
		"and again":          {[]publisher.VolumeStatus{known, unknown}, "r1"},
		"known, then none":   {[]publisher.VolumeStatus{known, none}, "r1"},
		"none":               {[]publisher.VolumeStatus{unknown, none, unknown}, ""},
		"unknown":            {[]publisher.VolumeStatus{unknown}, unknownRevision},
		"absent, unknown":    {[]publisher.VolumeStatus{absent, unknown, absent}, unknownRevision},
		"absent for all":     {[]publisher.VolumeStatus{absent, absent}, ""},
		"absent, then known": {[]publisher.VolumeStatus{absent, known}, "r1"},
	} {
		shared := &object{}
		shared.Ref = ref
		var volumes []*reportedVolume
		for _, v := range test.volumes {
			volumes = append(volumes, &reportedVolume{VolumeStatus: v, objects: []namedObject{{object: shared}}})
		}
		if all := number(volumes); len(all) != 1 || len(all[0].versions) != 1 || all[0].versions[0].revision != test.want {
			t.Errorf("%s: %+v, want %q", name, all[0].versions, test.want)
		}
	}
}

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
			expect.Equal(t, "the volume", fmt.Sprint(v), fmt.Sprint(whole[v.VolumeID]))
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
