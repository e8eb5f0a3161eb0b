package publisher

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// rolloutSources has two groups of objects that share files: o0, o1 and o4, where o1 and o4 may have a key of the same name, and o2 and o3.
const rolloutSources = `[
	{versions: {path: versions.json}},
	{configMap: {name: o0}}, {configMap: {name: o1, optional: true}}, {configMap: {name: o2}},
	{configMap: {name: o3, optional: true, items: [{key: x, path: d/x}]}},
	{configMap: {name: o4, NAMESPACE optional: true}},
	{env: {path: e1, envFrom: [{configMapRef: {name: o0}}, {configMapRef: {name: o1, optional: true}}]}},
	{join: {path: j1, sources: [{configMap: {name: o2, key: o2x, optional: true}}, {configMap: {name: o3, key: x, optional: true}}]}},
	{expand: {path: x1, configMap: {name: o2, key: o2y, optional: true}, env: [{name: V, valueFrom: {configMapKeyRef: {name: o3, key: x, optional: true}}}]}},
	{expand: {path: x2, configMap: {name: o0, key: o0x}, env: [{name: V, valueFrom: {configMapKeyRef: {name: o1, key: o1x, optional: true}}}, {name: W, valueFrom: {configMapKeyRef: {name: o4, NAMESPACE key: o4x, optional: true}}}]}}]`

// rolloutWorld is one volume with a model of what it may show.
type rolloutWorld struct {
	*env
	dice   *rand.Rand
	access *fakeAccess // nil: the pod may read all objects
	r      binding.Request
	refs   []volume.Ref
	// groups says which objects share files, by number.
	groups [5]int
	// history has every object that ever existed.
	history map[volume.Version]*volume.Object
	// rest is how long it takes until everything is in its final state.
	rest time.Duration
	// refused are the refused objects. atOnce says, by group, whether something was removed, refused or allowed in a step. torn means that
	// a write in place failed half-way.
	refused map[volume.Ref]bool
	atOnce  [2]bool
	torn    bool
	// wasOpen has the objects that the pod could take at some moment of the step, and open the versions that it could take at the start of
	// the step. A version that was held with another object of its group may be shown for a moment, once that one is open.
	wasOpen map[volume.Ref]bool
	open    record.Versions
	// due means that an earlier refusal still has to remove a text or bring it back. owed means, by group, that an earlier deletion could
	// not be shown yet.
	due  bool
	owed [2]bool
	// counts says how often each event was seen.
	counts map[string]int
}

// TestRandomRollouts: whatever happens, the files match the versions in the record; versions that the pod may not take yet are only shown
// if necessary; and nothing else is held. The schedule has changes, steps, deletions, refusals, failed writes and restarts, and uses node
// identity, polling and spread.
func TestRandomRollouts(t *testing.T) {
	seeds := 60
	switch {
	case os.Getenv("REFVOL_LONG") != "":
		seeds = 5000
	case testing.Short():
		seeds = 20
	}
	counts, all := map[string]int{}, dice.Seeds(t, seeds)
	for _, seed := range all {
		isOK := t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRollout(t, seed, counts) })
		if !isOK && !t.Failed() {
			break
		}
	}
	t.Log(counts)
	if len(all) < 20 {
		return
	}
	for _, what := range []string{"held", "current", "failed", "refused", "released together", "torn"} {
		if counts[what] == 0 {
			t.Errorf("there was never one that is %s", what)
		}
	}
}

func randomRollout(t *testing.T, seed uint64, counts map[string]int) {
	w := &rolloutWorld{
		dice: rand.New(rand.NewPCG(seed, 1)), history: map[volume.Version]*volume.Object{}, refused: map[volume.Ref]bool{}, wasOpen: map[volume.Ref]bool{},
		groups: [...]int{0, 0, 1, 1, 0}, counts: counts,
	}
	namespace := ""
	for i := range w.groups {
		w.refs = append(w.refs, configMap(fmt.Sprint("o", i)))
	}
	mode := w.dice.IntN(4)
	if mode == 0 {
		w.access, namespace = &fakeAccess{}, "namespace: platform,"
		w.refs[4].Namespace = "platform"
		w.access.grant(w.refs[4])
	}
	inStoppedBubble(t, func(o *Options) {
		o.NodeRights = mode == 1
		if w.access != nil {
			o.Reviews, o.CrossNamespace = w.access.reviews(), true
		}
	}, func(e *env) {
		w.env = e
		e.pods.name(w.refs...)
		e.run()
		attributes := []string{
			"sources", strings.ReplaceAll(rolloutSources, "NAMESPACE", namespace), "writeStrategy", []string{"Atomic", "InPlace"}[w.dice.IntN(2)],
			"onDelete", []string{"Keep", "Remove"}[w.dice.IntN(2)],
		}
		if w.dice.IntN(4) == 0 {
			attributes, w.rest = append(attributes, "spread", "20s"), 45*time.Second
		}
		if w.dice.IntN(3) == 0 {
			e.objects.poll()
			w.rest += 2 * testResync
		}
		w.r = e.request(fmt.Sprint("v", seed), attributes...)
		w.put(0, "", "o0x", "1")
		w.put(2, "", "o2x", "1")
		e.publish(w.r)
		for range 25 {
			w.step()
			if e.Failed() {
				s := e.status()
				e.Fatalf("seed %d %v: %s: %s", seed, attributes[2:], s.Condition, s.Reason)
			}
		}
	})
}

// shareOf returns the share of the pods that may take an object's newest version.
func shareOf(o *volume.Object) int {
	if o.Immutable {
		return 100
	}
	percent, _ := volume.ParseShare(o.Rollout)
	return percent
}

func (w *rolloutWorld) put(i int, share string, pairs ...string) {
	w.objects.putShare(w.refs[i], share, pairs...)
	now := w.objects.get(w.refs[i])
	w.history[now.Version] = now
	w.Logf("%s at %s: %q, %q", now.Name, now.ResourceVersion, now.Rollout, pairs)
	if percent := shareOf(now); percent >= volume.RolloutPlace(w.r.Pod.UID) {
		w.wasOpen[w.refs[i]] = true
	}
}

// change changes an object or its share, or removes it.
func (w *rolloutWorld) change() {
	i := w.dice.IntN(len(w.refs))
	ref, old := w.refs[i], w.objects.get(w.refs[i])
	if old != nil && w.dice.IntN(10) == 0 {
		w.Logf("%s is removed", ref.Name)
		w.objects.remove(ref)
		w.atOnce[w.groups[i]] = true
		return
	}
	out, in := shares(w.r)
	share := []string{out, in, "0%", "", "ten"}[min(w.dice.IntN(13)/3, 4)]
	var pairs []string
	if old != nil && w.dice.IntN(3) == 0 { // a step
		for _, key := range slices.Sorted(maps.Keys(old.Data)) {
			pairs = append(pairs, key, string(old.Data[key]))
		}
		w.put(i, share, pairs...)
		return
	}
	if shared := []string{1: "s", 3: "x", 4: "s"}[i]; shared != "" && w.dice.IntN(3) > 0 {
		pairs = append(pairs, shared, fmt.Sprint(w.dice.IntN(3)))
	}
	for _, key := range []string{"x", "y", "z"} {
		if w.dice.IntN(8) > 0 {
			pairs = append(pairs, ref.Name+key, fmt.Sprint(w.dice.IntN(3), "$(V)$(W)"))
		}
	}
	w.put(i, share, pairs...)
}

// step makes something happen, and checks the volume when everything has settled.
func (w *rolloutWorld) step() {
	before, isDue := w.recorded(w.r), w.due
	w.atOnce, w.due, w.owed = w.owed, false, [2]bool{}
	w.atOnce[0] = w.atOnce[0] || isDue
	clear(w.wasOpen)
	w.open = record.Versions{}
	for _, ref := range w.refs {
		if now := w.objects.get(ref); now != nil {
			if share := shareOf(now); share >= volume.RolloutPlace(w.r.Pod.UID) {
				w.open[ref] = now.Version
			}
		}
	}
	refusedBefore := maps.Clone(w.refused)
	for range 1 + w.dice.IntN(2) {
		w.change()
	}
	what := w.dice.IntN(8)
	w.Logf("step %d", what)
	switch what {
	case 0:
		w.restart()
	case 1:
		after(2 * testResync)
	case 2:
		w.writes.set(func() error { return errFault }, nil)
		after(w.rest)
		w.settle()
		w.writes.set(nil, nil)
		after(10 * time.Second)
	case 3:
		w.torn = w.torn || w.r.Attributes["writeStrategy"] == "InPlace"
		w.count("torn", w.torn)
		w.writes.set(nil, func() error { return errKilled })
		after(w.rest)
		w.settle()
		w.change()
		w.settle()
		w.writes.set(nil, nil)
		after(10 * time.Second)
	case 4:
		if w.access != nil {
			w.refuse()
		}
	}
	after(w.rest)
	w.settle()
	after(w.rest)
	w.settle()
	w.check(before, refusedBefore)
}

// refuse removes a right, or restores it.
func (w *rolloutWorld) refuse() {
	ref := w.refs[4]
	w.atOnce[w.groups[4]] = true
	if w.refused[ref] {
		w.access.grant(ref)
		delete(w.refused, ref)
	} else {
		w.access.grant()
		w.refused[ref] = true
	}
	after(reviewTime)
}

func (w *rolloutWorld) count(what string, is bool) {
	if is {
		w.counts[what]++
	}
}

// render returns what the volume must show for objects at given versions, and each file with its objects if requested.
func (w *rolloutWorld) render(at record.Versions, refused map[volume.Ref]bool, withRefs bool) map[string]string {
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
	tree, err := payload.Render(spec, objects, payload.Options{ForgiveDeleted: true, Refused: refused, Pod: w.r.Pod, NodeName: testNode})
	if err != nil {
		return nil
	}
	files := map[string]string{}
	for i := range tree.Files {
		files[tree.Files[i].Path] = string(tree.Files[i].Data)
		if withRefs {
			files[tree.Files[i].Path] += fmt.Sprint(tree.Files[i].Refs)
		}
	}
	return files
}

// changesFiles reports whether another version of one object changes files, apart from the versions file.
func (w *rolloutWorld) changesFiles(at record.Versions, ref volume.Ref, version volume.Version) bool {
	next := maps.Clone(at)
	next[ref] = version
	before, now := w.render(at, w.refused, true), w.render(next, w.refused, true)
	delete(before, "versions.json")
	delete(now, "versions.json")
	return now == nil || !maps.Equal(before, now)
}

// check compares the volume with what it must show.
func (w *rolloutWorld) check(before record.Versions, refusedBefore map[volume.Ref]bool) {
	w.Helper()
	shown, status := w.recorded(w.r), w.status()
	w.compareFiles(shown, status)
	isFailed := status.Condition != ConditionCurrent && status.Condition != ConditionHeld
	w.count("held", status.Condition == ConditionHeld)
	w.count("current", status.Condition == ConditionCurrent)
	w.count("failed", isFailed)
	w.count("refused", len(w.refused) > 0)
	place := volume.RolloutPlace(w.r.Pod.UID)
	var late, waits [2]bool
	newest := record.Versions{}
	for i, ref := range w.refs {
		now := w.objects.get(ref)
		if w.refused[ref] {
			now = nil
		}
		if now == nil {
			continue
		}
		if newest[ref] = now.Version; now.Version == shown[ref] {
			continue
		}
		late[w.groups[i]] = true
		share := shareOf(now)
		waits[w.groups[i]] = waits[w.groups[i]] || share < place
	}
	canBeShown := w.render(newest, w.refused, false) != nil
	for i, ref := range w.refs {
		isGone, isNew := before[ref].UID != "" && shown[ref].UID == "", before[ref].UID == "" && shown[ref].UID != ""
		if isGone || isNew { // also for a deletion that could not be shown before
			w.atOnce[w.groups[i]] = true
		}
	}
	for i, ref := range w.refs {
		now, group := w.objects.get(ref), w.groups[i]
		w.owed[group] = w.owed[group] || now == nil && shown[ref].UID != ""
		if now == nil || w.refused[ref] || refusedBefore[ref] {
			continue
		}
		share := shareOf(now)
		isTaken := shown[ref] == now.Version && before[ref] != now.Version
		if isTaken && share < place && !w.torn && !w.wasOpen[ref] && w.changesFiles(shown, ref, before[ref]) && w.changesFiles(shown, ref, w.open[ref]) {
			w.count("released together", w.atOnce[group])
			if !w.atOnce[group] {
				w.Errorf("%s is not held: it was at %v, and is at %v with %q", ref, before[ref], now.Version, now.Rollout)
			}
		}
		if shown[ref] != now.Version && !isFailed && !waits[group] {
			w.Errorf("%s is held, and nothing of its files has to wait: it is at %v, and not at %v with %q", ref, shown[ref], now.Version, now.Rollout)
		}
		if shown[ref] != now.Version && shown[ref].UID != "" && !isFailed && canBeShown && w.isAlone(i, shown) && !w.changesFiles(shown, ref, now.Version) {
			w.Errorf("%s is held, and changes no file: it is at %v, and not at %v", ref, shown[ref], now.Version)
		}
	}
	w.torn = w.torn && isFailed // if rendering fails, the files stay torn
	if !isFailed && (late[0] || late[1]) != (status.Condition == ConditionHeld) {
		w.Errorf("%s, and %v is not the newest", status.Condition, late)
	}
}

// isAlone reports whether all other objects of its group are shown at their newest versions.
func (w *rolloutWorld) isAlone(i int, shown record.Versions) bool {
	for j, ref := range w.refs {
		now := w.objects.get(ref)
		if j != i && w.groups[j] == w.groups[i] && !w.refused[ref] && (now == nil && shown[ref].UID != "" || now != nil && now.Version != shown[ref]) {
			return false
		}
	}
	return true
}

// compareFiles compares the files with the record. If a refused object was not shown, its text is removed by the next possible update.
func (w *rolloutWorld) compareFiles(shown record.Versions, status VolumeStatus) {
	w.Helper()
	want, got := w.render(shown, w.refused, false), w.mounts.files(w.r.Target)
	if want == nil {
		w.Errorf("what the record has can't be shown: %v", shown)
	}
	if isStuck := strings.Contains(status.Reason, "not found") || strings.Contains(status.Reason, "key"); isStuck && w.access != nil {
		if w.r.Attributes["writeStrategy"] == "InPlace" { // withdrawn files are empty
			maps.DeleteFunc(got, func(_, text string) bool { return text == "" })
		}
		w.due = true
		maps.DeleteFunc(want, func(path, _ string) bool { _, isThere := got[path]; return !isThere || path == "x2" })
		delete(got, "x2")
	}
	if now := w.objects.get(w.refs[1]); got["s"] == "" && now != nil && now.Version != shown[w.refs[1]] {
		other := w.history[shown[w.refs[4]]]
		if other == nil || other.Data["s"] == nil {
			delete(want, "s") // the file of o1 was hidden by that of o4, which is gone: see rollout.held
		}
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
