package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// shows returns one volume that shows an object at a version, and the state of that object.
func shows(shown string, o manager.ObjectStatus) *world {
	o.Ref = configMap("app")
	return &world{
		volumes: []publisher.VolumeStatus{{
			Condition: "VolumeUpdateFailed", Refs: []volume.Ref{o.Ref},
			Shown: map[volume.Ref]volume.Version{o.Ref: {UID: "u", ResourceVersion: shown}},
		}},
		objects: []manager.ObjectStatus{o},
	}
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
		"current":                {"12", manager.ObjectStatus{Version: at("12")}, ""},
		"newer":                  {"9", manager.ObjectStatus{Version: at("12")}, ""},
		"absent":                 {"12", manager.ObjectStatus{}, ""},
		"nothing is shown of it": {"", manager.ObjectStatus{Version: at("12")}, ""},
	} {
		got, err := json.Marshal(shows(test.shown, test.known).report(t, 0).Volumes[0].Objects[0])
		if err != nil || strings.Contains(string(got), "olderAnswer") != (test.want != "") || !strings.Contains(string(got), test.want) {
			t.Errorf("%s: %s, %v", name, got, err)
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
	if got := r.Report().Volumes[0].Objects[0]; got.OlderAnswer != nil {
		t.Errorf("got %+v", got.OlderAnswer)
	}
}
