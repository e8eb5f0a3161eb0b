package report

import (
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

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
	for name, test := range map[string]struct {
		shown string
		known manager.ObjectStatus
		want  string
	}{
		"refused": {
			"12",
			manager.ObjectStatus{Version: at("12"), OlderAnswer: &manager.OlderAnswer{Object: at("9"), ResourceVersion: "11", Known: "20"}},
			`"olderAnswer":{"object":{"uid":"u","resourceVersion":"9"},"resourceVersion":"11","known":"20"}`,
		},
		"refused, and without the object": {
			"12",
			manager.ObjectStatus{Version: at("12"), OlderAnswer: &manager.OlderAnswer{ResourceVersion: "11", Known: "20"}},
			`"olderAnswer":{"resourceVersion":"11","known":"20"}`,
		},
		"older than the files": {
			"12",
			manager.ObjectStatus{Version: at("9")},
			`"olderAnswer":{"object":{"uid":"u","resourceVersion":"9"},"resourceVersion":"9","known":"12"}`,
		},
		"older than the files of two volumes": {
			"12 9 13 11",
			manager.ObjectStatus{Version: at("9")},
			`"olderAnswer":{"object":{"uid":"u","resourceVersion":"9"},"resourceVersion":"9","known":"13"}`,
		},
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
