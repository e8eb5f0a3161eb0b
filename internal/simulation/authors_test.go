package simulation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/manager"
)

func (w *world) names() []string { return slices.Sorted(maps.Keys(w.objects)) }

func (w *world) size() int { return w.roll("size", 6000) }

// pair are two objects that belong together.
var pair = []string{"c4", "s2"}

func (w *world) put(name string) {
	if slices.Contains(pair, name) {
		w.putPair(name)
		return
	}
	what := write{size: w.size()}
	if name == canaryName {
		what.canary = []string{"0%", "10%", "50%", "90%", "100%", "100%", "ten", ""}[w.roll("canary", 8)]
	}
	w.server.put(name, what)
}

// canaryName is the object that volumes name as a canary.
const canaryName = "k1"

// putPair changes both objects of the pair, name first, within about a second. The process may be killed between.
func (w *world) putPair(name string) {
	other := pair[0]
	if name == other {
		other = pair[1]
	}
	revision := fmt.Sprint("r-", int64(w.Now()))
	w.server.put(name, write{revision: revision, size: w.size()})
	after(time.Duration(w.roll("between", 1200)) * time.Millisecond)
	if proc := w.process.Load(); proc != nil && !w.isCalm.Load() && w.roll("kill between", 8) == 0 {
		w.Met("a kill in the middle of a pair")
		proc.kill("between the changes of a pair", false)
		after(time.Duration(w.roll("after the kill", 4000)) * time.Millisecond)
	}
	w.server.put(other, write{revision: revision, size: w.size()})
	w.Met("a pair is changed")
}

// places are where a process can be killed. "" is the next hook, wherever it is. Those that are seldom reached are there more often.
var places = []string{
	"", "", "the start of a write", "the end of a write", "attach", "attached", "unmount", "unmounted",
	"list", "name the generation", "switch ..data", "make a link", "remove a link", "renew the record", "rewrite a file", "truncate a file", "empty a file",
	"empty a file", "empty a file", "renew the record", "rewrite a file",
}

func (w *world) step() {
	names := w.names()
	name := names[w.roll("object", len(names))]
	v := w.volumes[w.roll("volume", len(w.volumes))]
	account := []string{"a", "b"}[w.roll("account", 2)]
	switch w.roll("step", 40) {
	default:
		w.put(name)
	case 0, 1:
		w.server.remove(name)
	case 2:
		w.server.remove(name)
		w.put(name)
	case 3, 4, 5, 6:
		w.server.put(name, write{rollout: fmt.Sprint(w.roll("share", 3)*50, "%"), size: w.size()})
	case 7:
		w.server.put(name, write{immutable: true, size: w.size()})
	case 8:
		w.server.put(name, write{size: mebibyte})
	case 9, 10, 11:
		v.isWanted.Store(!v.wants())
	case 12, 13:
		w.server.grant(account, name, w.roll("consent", 3) > 0)
	case 14, 15: // a consent ends just before a pod starts that needs it
		w.endConsent()
	case 16:
		if proc := w.process.Load(); proc != nil {
			proc.kill("any time", false)
		}
	case 17, 18, 19, 20:
		w.planKill(places[w.roll("place", len(places))], w.roll("kill", 4)+1)
	case 21:
		if proc := w.process.Load(); proc != nil {
			proc.terminate()
		}
	case 22:
		w.server.cut()
	case 23:
		w.server.compact()
	case 24, 25:
		w.server.restart(w.roll("older", 20))
	case 26, 27:
		w.server.heal()
	case 28, 29:
		w.server.fail()
	case 30:
		w.server.failAt(name)
	case 31:
		if p := v.running.Load(); p != nil && w.mounts.lose(p.target) {
			w.Met("a lost mount")
		}
	case 32, 37:
		w.missMoment()
	case 33:
		w.holdBroken()
	case 34, 35:
		w.rewriteAtStart()
	case 36, 38:
		w.lagAtStart()
	}
}

// endConsent revokes a right that running pods have, and soon starts another pod that needs it.
func (w *world) endConsent() {
	v := w.volumes[[]int{2, 3, 5}[w.roll("cross", 3)]]
	if n := w.roll("kill a withdrawal", 4); n < 2 {
		w.planKill([]string{"the start of a withdrawal", "the end of a withdrawal"}[n], 1)
	}
	w.server.grant(v.account, "x1", false)
	after(time.Duration(5000+w.roll("after consent", 8000)) * time.Millisecond)
	v.isWanted.Store(true)
}

// missMoment changes an object of a volume with spread, which can't be written at the pod's moment. A later change comes with the end of
// that fault.
func (w *world) missMoment() {
	v := w.volumes[4]
	p := v.running.Load()
	if p == nil {
		return
	}
	w.Met("a missed moment")
	w.put("c1")
	w.mounts.broken.Store(p.target, true)
	after(3*v.spread + time.Duration(w.roll("missed", int(v.spread))))
	w.put("c1")
	w.mounts.broken.Delete(p.target)
	w.Add(history.Event{Kind: history.Mended, Volume: p.volumeID})
	after(10 * time.Second)
}

// holdBroken makes a volume that holds a version one whose superseded generation can't be removed.
func (w *world) holdBroken() {
	v := w.volumes[[]int{0, 2, 7}[w.roll("broken", 3)]]
	p := v.running.Load()
	if p == nil {
		return
	}
	w.put(v.required[0])
	after(300 * time.Millisecond)
	w.server.put(v.required[0], write{rollout: "0%", size: w.size()})
	after(100 * time.Millisecond)
	w.mounts.broken.Store(p.target, true)
	w.Met("a broken mount")
	for range 50 {
		after(10 * time.Second)
		w.lookAll(false)
	}
	w.mounts.broken.Delete(p.target)
	w.Add(history.Event{Kind: history.Mended, Volume: p.volumeID})
}

// rewriteAtStart changes an object of an InPlace volume, whose files have all been opened, while the plugin is away.
func (w *world) rewriteAtStart() {
	p, proc := w.volumes[1].running.Load(), w.process.Load()
	if p == nil || proc == nil {
		return
	}
	w.openFiles(p.target, func(string) bool { return true })
	after(5 * time.Second)
	w.server.heal()
	name := w.volumes[1].required[w.roll("rewritten", 2)]
	stalled := name + []string{"-a", "-b"}[w.roll("stalled", 2)]
	w.stalled.Store(stalled)
	proc.kill("any time", false)
	w.put(name)
	after(8 * time.Second)
	w.stalled.Store("")
	w.openFiles(p.target, func(file string) bool { return file != stalled })
	after(5 * time.Second) // until the receipts are known
	w.Met("a change while the plugin is away")
}

// lagAtStart starts the plugin while the API server still answers with an immutable object that has been replaced.
func (w *world) lagAtStart() {
	proc := w.process.Load()
	if proc == nil {
		return
	}
	w.server.heal()
	w.server.put("s1", write{immutable: true, size: w.size()})
	after(5 * time.Second)
	w.put("s1") // removes it and creates another one
	after(5 * time.Second)
	w.server.restart(2)
	proc.kill("any time", false)
	after(10 * time.Second)
	w.Met("a start while the API server lags")
}

func (w *world) planKill(place string, in int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killAt, w.killIn = place, in
}

// killNow reports whether the process is to be killed at a hook.
func (w *world) killNow(place string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.killIn == 0 || w.killAt != "" && w.killAt != place {
		return false
	}
	w.killIn--
	return w.killIn == 0
}

// rest ends all faults, and checks what must be true then.
func (w *world) rest(number int) {
	w.planKill("", 0)
	w.server.heal()
	w.mounts.broken.Clear()
	for _, name := range w.names() {
		if number < 2 || name != "c2" {
			w.put(name) // the newest version is for all pods
		}
	}
	if number == 2 {
		w.server.remove("c2")
	}
	for range int(settleTime / (10 * time.Second)) {
		after(10 * time.Second)
		w.lookAll(false)
	}
	w.Add(history.Event{Kind: history.Healed})
	w.isCalm.Store(true)
	defer w.isCalm.Store(false)
	after(time.Minute)
	w.lookAll(true)
	w.server.takeSeen()
	after(4 * time.Minute)
	w.lookAll(true)
	w.noteRequests()
	w.changeAll()
}

// changeAll changes each object. With Watch the volumes must show that at once.
func (w *world) changeAll() {
	after(resync / 2) // the last change of most volumes was some minutes ago, and their resync comes each minute
	for _, name := range w.names() {
		if w.server.now(name) != nil {
			w.put(name)
		}
	}
	after(promptTime)
	if w.mode.detection == manager.Watch && w.process.Load() != nil {
		w.Met("prompt")
		w.lookAtAll(func(seen *history.Seen) { seen.IsPrompt = true })
	}
}
