package publisher

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// rolloutSources has two groups of objects that share files: o0, o1 and o4, and o2 and o3.
const rolloutSources = `[
	{versions: {path: versions.json}},
	{configMap: {name: o0}}, {configMap: {name: o1, optional: true}}, {configMap: {name: o2}},
	{configMap: {name: o3, optional: true, items: [{key: x, path: d/x}]}}, {configMap: {name: o4, optional: true}},
	{env: {path: e1, envFrom: [{configMapRef: {name: o0}}, {configMapRef: {name: o1, optional: true}}]}},
	{join: {path: j1, sources: [{configMap: {name: o2, key: o2x, optional: true}}, {configMap: {name: o3, key: x, optional: true}}]}},
	{expand: {path: x1, configMap: {name: o2, key: o2y, optional: true}, env: [{name: V, valueFrom: {configMapKeyRef: {name: o3, key: x, optional: true}}}]}},
	{expand: {path: x2, configMap: {name: o0, key: o0x}, env: [{name: V, valueFrom: {configMapKeyRef: {name: o1, key: o1x, optional: true}}}, {name: W, valueFrom: {configMapKeyRef: {name: o4, key: o4x, optional: true}}}]}}]`

// rolloutWorld is one volume with a model of what it may show.
type rolloutWorld struct {
	*env
	dice *rand.Rand
	r    binding.Request
	refs []volume.Ref
	// groups says which objects share files, by number.
	groups [5]int
	// history has every object that ever existed.
	history map[volume.Version]*volume.Object
	// counts says how often each event was seen.
	counts map[string]int
}

// TestRandomRollouts: what the simulation leaves out, which are objects that share files, and files that are rewritten in place. The files
// match the versions in the record, and nothing is held unless an object of its group has to wait. The schedule has changes, steps, failed
// writes and restarts. TestHeldTogether of package stage has what is held.
func TestRandomRollouts(t *testing.T) {
	counts, all := map[string]int{}, dice.Seeds(t, 20)
	for _, seed := range all {
		inBubbleOf(t, fmt.Sprint(seed), func(e *env) {
			w := &rolloutWorld{
				env: e, dice: dice.New(seed), history: map[volume.Version]*volume.Object{},
				groups: [...]int{0, 0, 1, 1, 0}, counts: counts,
			}
			for i := range w.groups {
				w.refs = append(w.refs, configMap(fmt.Sprint("o", i)))
			}
			strategy := strategies[w.dice.IntN(2)]
			w.r = e.request(fmt.Sprint("v", seed), "sources", rolloutSources, "writeStrategy", strategy)
			w.put(0, "", "o0x", "1")
			w.put(2, "", "o2x", "1")
			e.publish(w.r)
			for range 25 {
				if w.step(); e.Failed() {
					e.Fatalf("%s: %+v", strategy, e.status())
				}
			}
		})
	}
	for _, what := range []string{"held", "current", "failed", "torn"} {
		if counts[what] == 0 && len(all) >= 20 {
			t.Errorf("there was never one that is %s", what)
		}
	}
}

// mayTake reports whether the pod may take an object's newest version.
func (w *rolloutWorld) mayTake(o *volume.Object) bool {
	percent, _ := volume.ParseShare(o.Rollout)
	return percent >= volume.RolloutPlace(w.r.Pod.UID)
}

func (w *rolloutWorld) put(i int, share string, pairs ...string) {
	w.objects.putShare(w.refs[i], share, pairs...)
	now := w.objects.get(w.refs[i])
	w.history[now.Version] = now
	w.Logf("%s at %s: %q, %q", now.Name, now.ResourceVersion, now.Rollout, pairs)
}

// change changes an object or its share.
func (w *rolloutWorld) change() {
	i := w.dice.IntN(len(w.refs))
	out, in := shares(w.r)
	share := []string{out, in, "0%", "", "ten"}[min(w.dice.IntN(13)/3, 4)]
	var pairs []string
	if old := w.objects.get(w.refs[i]); old != nil && w.dice.IntN(3) == 0 { // a step
		for _, key := range slices.Sorted(maps.Keys(old.Data)) {
			pairs = append(pairs, key, string(old.Data[key]))
		}
		w.put(i, share, pairs...)
		return
	}
	if w.refs[i].Name == "o3" && w.dice.IntN(3) > 0 { // other files show only this key of it
		pairs = append(pairs, "x", fmt.Sprint(w.dice.IntN(3)))
	}
	for _, key := range []string{"x", "y", "z"} {
		if w.dice.IntN(8) > 0 {
			pairs = append(pairs, w.refs[i].Name+key, fmt.Sprint(w.dice.IntN(3), "$(V)$(W)"))
		}
	}
	w.put(i, share, pairs...)
}

// step makes something happen, and checks the volume when everything has settled.
func (w *rolloutWorld) step() {
	for range 1 + w.dice.IntN(2) {
		w.change()
	}
	switch w.dice.IntN(6) {
	case 0:
		w.restart()
	case 1:
		w.writes.set(func() error { return errFault }, nil)
		w.settle()
		w.writes.set(nil, nil)
		after(10 * time.Second)
	case 2:
		w.count("torn", w.r.Attributes["writeStrategy"] == "InPlace")
		w.writes.set(nil, func() error { return errKilled })
		w.settle()
		w.change()
		w.settle()
		w.writes.set(nil, nil)
		after(10 * time.Second)
	}
	w.settle()
	w.check()
}

func (w *rolloutWorld) count(what string, is bool) {
	if is {
		w.counts[what]++
	}
}

// render returns what the volume must show for objects at given versions.
func (w *rolloutWorld) render(at record.Versions) map[string]string {
	w.Helper()
	objects := payload.Objects{}
	for ref, version := range at {
		if version.UID == "" {
			continue
		}
		if objects[ref] = w.history[version]; objects[ref] == nil {
			w.Fatalf("%s is shown at %v", ref, version)
		}
	}
	spec := w.lookup(w.r.VolumeID).vol.binding.Spec().Resolved
	tree, err := payload.Render(spec, objects, payload.Options{ForgiveDeleted: true, Pod: w.r.Pod, NodeName: testNode})
	if err != nil {
		return nil
	}
	files := map[string]string{}
	for i := range tree.Files {
		files[tree.Files[i].Path] = string(tree.Files[i].Data)
	}
	return files
}

// check compares the volume with what it must show.
func (w *rolloutWorld) check() {
	w.Helper()
	shown, status := w.recorded(w.r), w.status()
	w.compareFiles(shown)
	isFailed := status.Condition != ConditionCurrent && status.Condition != ConditionHeld
	w.count("held", status.Condition == ConditionHeld)
	w.count("current", status.Condition == ConditionCurrent)
	w.count("failed", isFailed)
	if isFailed {
		return
	}
	// late says, by group, whether an object is not shown at its newest version, and waits whether such a one may not be.
	var late, waits [2]bool
	for i, ref := range w.refs {
		if now := w.objects.get(ref); now != nil && now.Version != shown[ref] {
			late[w.groups[i]], waits[w.groups[i]] = true, waits[w.groups[i]] || !w.mayTake(now)
		}
	}
	if late != waits {
		w.Errorf("by group, %v is not the newest, and %v has to wait", late, waits)
	}
	if (late[0] || late[1]) != (status.Condition == ConditionHeld) {
		w.Errorf("%s, and %v is not the newest", status.Condition, late)
	}
}

// compareFiles compares the files with the record. With InPlace, removed files are empty.
func (w *rolloutWorld) compareFiles(shown record.Versions) {
	w.Helper()
	want, got := w.render(shown), w.mounts.files(w.r.Target)
	if want == nil {
		w.Errorf("what the record has can't be shown: %v", shown)
	}
	for path, text := range want {
		if got[path] != text {
			w.Errorf("%s is %q, and by the record %q", path, got[path], text)
		}
		delete(got, path)
	}
	for path, text := range got {
		if w.r.Attributes["writeStrategy"] == "Atomic" || text != "" {
			w.Errorf("also %s: %q", path, text)
		}
	}
}
