package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
)

// settleTime is how long after the end of all faults every volume must be current.
const settleTime = 3 * time.Minute

// volumeAt returns the volume whose target a path is.
func (w *world) volumeAt(target string) *simVolume {
	i := slices.IndexFunc(w.volumes, func(v *simVolume) bool { return strings.Contains(target, "/uid-"+v.name+"-") })
	return w.volumes[i]
}

// promptTime is how long after a change, without any fault, every volume must be current with Watch.
const promptTime = 5 * time.Second

// lookAll looks at all mounted volumes while nothing else runs, lets a container open some files, and notes what the plugin says.
func (w *world) lookAll(settled bool) {
	w.lookAtAll(func(seen *history.Seen) { seen.IsSettled = settled })
	if proc := w.process(); proc != nil {
		w.noteStatus(proc)
		w.noteAnswers(proc)
	}
	if !settled {
		return
	}
	for _, v := range w.volumes {
		if p := v.mounted(); p != nil && p.failures == 0 && w.mounts.Directory(p.target) == "" {
			w.Errorf("%s is published and not mounted", p.volumeID)
		}
	}
}

// lookAtAll looks at all mounted volumes while nothing else runs. mark says what the looks must show.
func (w *world) lookAtAll(mark func(*history.Seen)) {
	synctest.Wait()
	for _, target := range w.mounts.Targets() {
		w.lookAtTarget(target, mark)
	}
}

func (w *world) lookAtTarget(target string, mark func(*history.Seen)) {
	id, dir := w.mounts.At(target)
	if dir == "" {
		return
	}
	seen := w.volumeAt(target).look(dir)
	if mark != nil {
		mark(seen)
	}
	w.Add(history.Event{Kind: history.Saw, Volume: id, Seen: seen, Begin: w.Now()})
	if !seen.IsSettled && w.oneIn("open", 3) {
		w.openFiles(target, func(string) bool { return w.roll("open one", 6) > 0 })
	}
}

// openFiles is a container that opens some of a volume's files.
func (w *world) openFiles(target string, which func(file string) bool) {
	_, dir := w.mounts.At(target)
	generation, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		return
	}
	entries, err := os.ReadDir(filepath.Join(dir, generation))
	must(err)
	for _, e := range entries {
		if which(e.Name()) {
			w.open(filepath.Join(dir, generation, e.Name()))
		}
	}
}

// lookAt looks at a volume in the middle of a write, as a reader would see it. It does nothing if the directory is not visible.
func (w *world) lookAt(dir string) {
	for _, target := range w.mounts.Targets() {
		if w.mounts.Directory(target) == dir && !w.volumeAt(target).inPlace {
			w.lookAtTarget(target, nil)
			w.Met("a look during a write")
		}
	}
}

// lookLater looks at a volume just before its readers' second is over.
func (w *world) lookLater(dir string) {
	for _, target := range w.mounts.Targets() {
		if w.mounts.Directory(target) == dir {
			w.kubelets.Go(func() {
				after(900 * time.Millisecond)
				w.mounts.disk.Lock() // not in the middle of a write
				defer w.mounts.disk.Unlock()
				w.lookAtTarget(target, nil)
				w.Met("a look before the second is over")
			})
		}
	}
}

// noteStatus notes what the plugin says of its volumes.
func (w *world) noteStatus(proc *process) {
	var all []publisher.VolumeStatus
	for s := range proc.node.Volumes.Volumes {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b publisher.VolumeStatus) int { return strings.Compare(a.VolumeID, b.VolumeID) })
	for i := range all {
		s := &all[i]
		w.Met("condition " + string(s.Condition))
		e := history.Event{Kind: history.Told, Volume: s.VolumeID, Condition: string(s.Condition), Text: s.Reason}
		for _, ref := range s.Refs {
			if s.OpenState(ref) == opened.Yes {
				e.Receipts = append(e.Receipts, ref.Name)
				w.Met("a receipt")
			}
		}
		for range s.Absent {
			w.Met("an absent canary")
		}
		for ref := range s.Shown {
			if ref.Name == canaryName {
				w.Met("a shown canary")
			}
		}
		w.Add(e)
	}
}

// noteAnswers notes what the plugin knows of the objects.
func (w *world) noteAnswers(proc *process) {
	answers := map[history.Question]history.Answer{}
	for s := range proc.node.Objects.Objects {
		q := history.Question{Account: s.Account.Name, Object: s.Ref.Name}
		answers[q] = history.Answer{Version: w.server.versionAt(s.Ref, s.Version.ResourceVersion), IsKnown: s.State != manager.Unknown && !s.LastConfirmed.IsZero(), Since: w.Now() - time.Since(s.Since)}
	}
	w.Add(history.Event{Kind: history.Known, Answers: answers})
}

// noteRequests notes what was requested in a time in which nothing happened.
func (w *world) noteRequests() {
	seen := w.server.takeSeen()
	waits := func(v *simVolume) bool { return v.wants() && (v.mounted() == nil || v.mounted().failures > 0) }
	if w.mode.detection != manager.Watch || w.server.now("c2") == nil || slices.ContainsFunc(w.volumes, waits) {
		return // a publish that waits begins again and again
	}
	w.Met("quiet")
	for _, line := range sortedCounts(seen) {
		isExpected := strings.Contains(line, "reviews ") || strings.Contains(line, "/events") || strings.Contains(line, "/pods/")
		if !isExpected {
			w.Add(history.Event{Kind: history.Requested, Text: line})
		}
	}
}

// checkStopped checks a process that has ended.
func (w *world) checkStopped(proc *process) {
	if s := proc.requests.State(); s.UnderWay+s.Waiting > 1 { // an event may still be sent: only its timeout ends that
		w.Errorf("a stopped process has requests: %+v", s)
	}
	if proc.node.Objects.CachedBytes() != 0 {
		w.Errorf("a stopped process has %d bytes of objects", proc.node.Objects.CachedBytes())
	}
}

// finish ends all pods, and notes what is left of them.
func (w *world) finish() {
	w.mu.Lock()
	w.isEnding = true
	w.mu.Unlock()
	w.kubelets.Wait()
	synctest.Wait()
	left := func(text string) { w.Add(history.Event{Kind: history.Left, Text: text}) }
	proc := w.process()
	for s := range proc.node.Volumes.Volumes {
		left("volume " + s.VolumeID)
	}
	for s := range proc.node.Objects.Objects {
		left("object " + s.Ref.String())
	}
	if n := proc.node.Objects.CachedBytes(); n != 0 {
		left("bytes of objects")
	}
	for _, key := range w.server.unanswered() {
		left("request " + key)
	}
	if w.server.streams() > 0 {
		left("streams")
	}
	for _, what := range slices.Concat(w.mounts.Targets(), w.mounts.Leftovers()) {
		left(what)
	}
	after(time.Second) // events are written, and the TTL is read
	if s := proc.requests.State(); s.UnderWay+s.Waiting != 0 {
		left(fmt.Sprintf("requests: %+v", s))
	}
	after(5 * time.Minute) // an account that sends nothing any more is forgotten, also one whose last token has expired
	if s := proc.requests.State(); len(s.Closed) > 0 {
		left(fmt.Sprintf("requests: %+v", s))
	}
}
