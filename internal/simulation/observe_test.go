package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// settleTime is how long after the end of all faults every volume must be current.
const settleTime = 3 * time.Minute

func (w *world) volumeAt(target string) *simVolume {
	i := slices.IndexFunc(w.volumes, func(v *simVolume) bool { return strings.Contains(target, "/uid-"+v.name+"-") })
	return w.volumes[i]
}

// promptTime is how long after a change, without any fault, every volume must be current with Watch.
const promptTime = 5 * time.Second

// lookAll looks at all mounted volumes while nothing else runs, lets a container open some files, and notes what the plugin says.
func (w *world) lookAll(settled bool) {
	w.lookAtAll(func(seen *history.Seen) { seen.IsSettled = settled })
	if proc := w.process.Load(); proc != nil {
		w.noteStatus(proc)
		w.noteAnswers(proc)
	}
	if !settled {
		return
	}
	for _, v := range w.volumes {
		if p := v.running.Load(); p != nil && p.failures == 0 && w.mounts.Directory(p.target) == "" {
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
	all := slices.SortedFunc(proc.node.Volumes.Volumes, func(a, b publisher.VolumeStatus) int { return strings.Compare(a.VolumeID, b.VolumeID) })
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
	waits := func(v *simVolume) bool {
		return v.wants() && (v.running.Load() == nil || v.running.Load().failures > 0)
	}
	if w.mode.detection != manager.Watch || w.server.now("c2") == nil || slices.ContainsFunc(w.volumes, waits) {
		return // a publish that waits begins again and again
	}
	w.Met("quiet")
	slices.Sort(seen)
	for _, key := range slices.Compact(seen) {
		isExpected := strings.Contains(key, "reviews ") || strings.Contains(key, "/events") || strings.Contains(key, "/pods/")
		if !isExpected {
			w.Add(history.Event{Kind: history.Requested, Text: key})
		}
	}
}

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
	w.isEnding.Store(true)
	w.kubelets.Wait()
	synctest.Wait()
	left := func(text string) { w.Add(history.Event{Kind: history.Left, Text: text}) }
	proc := w.process.Load()
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
	w.server.set(func() {
		if w.server.open > 0 {
			left("streams")
		}
	})
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

// An object's values tell of which version they are. Of an object NAME at the version UID/N there are these keys:
//
//	NAME-a        UID/N
//	NAME-b        UID/N $(S1_A) xxx...
//	NAME-t0 or t1 UID/N, by turns
func dataOf(name string, version history.Version, size int) map[string]string {
	text := fmt.Sprint(version.UID, "/", version.N)
	return map[string]string{
		name + "-a": text, name + "-b": text + " $(S1_A) " + strings.Repeat("x", size), fmt.Sprint(name, "-t", version.N%2): text,
	}
}

func parseVersion(text string) (v history.Version, ok bool) {
	word, _, _ := strings.Cut(text, " ")
	uid, n, ok := strings.Cut(word, "/")
	v.UID = uid
	number, err := strconv.Atoi(n)
	v.N = number
	return v, ok && err == nil && uid != ""
}

// look reads what a directory of a volume shows, through the links that users see.
func (v *simVolume) look(dir string) *history.Seen {
	seen := &history.Seen{Shown: map[string]history.Version{}, Left: []string{}}
	wrong := func(format string, args ...any) { seen.Wrong = append(seen.Wrong, fmt.Sprintf(format, args...)) }
	generation, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		wrong("it is empty: %v", err)
		return seen
	}
	seen.Generation = generation
	top, err := os.ReadDir(dir)
	must(err)
	for _, e := range top {
		if e.IsDir() {
			seen.Left = append(seen.Left, e.Name())
		}
	}
	files := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(dir, generation))
	if err != nil {
		wrong("the generation: %v", err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, generation, e.Name()))
		if err != nil {
			wrong("%v", err)
		}
		if len(text) > 0 || !v.inPlace { // an emptied file of InPlace is no file
			files[e.Name()] = string(text)
		}
	}
	for name, found := range v.versionsIn(files, wrong) {
		seen.Shown[name] = found[0]
		if slices.ContainsFunc(found, func(other history.Version) bool { return other != found[0] }) {
			wrong("%s has several versions: %v", name, found)
		}
	}
	return seen
}

// versionsIn returns the versions of each object that the files of one generation show. It calls wrong for a file that has none, or a key
// that is missing.
func (v *simVolume) versionsIn(files map[string]string, wrong func(string, ...any)) map[string][]history.Version {
	found := map[string][]history.Version{}
	add := func(path, name, text string) {
		version, ok := parseVersion(text)
		if !ok {
			wrong("%s: %.60q", path, text)
		}
		found[name] = append(found[name], version)
	}
	for path, text := range files {
		switch name, key, _ := strings.Cut(path, "-"); {
		case path == "app.env":
			for line := range strings.Lines(text) {
				variable, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				name, _, _ := strings.Cut(strings.ToLower(variable), "_")
				add(path, name, strings.Trim(value, `"'`))
			}
		case path == "expanded":
			first, rest, _ := strings.Cut(text, " ")
			add(path, "c1", first)
			add(path, "s1", rest)
		default:
			add(path, name, text)
			version, _ := parseVersion(text)
			if strings.HasPrefix(key, "t") && key != fmt.Sprint("t", version.N%2) {
				wrong("%s belongs to another version than %v", path, version)
			}
			for _, other := range []string{"-a", "-b", fmt.Sprint("-t", version.N%2)} {
				if _, is := files[name+other]; !is {
					wrong("%s%s is missing beside %s", name, other, path)
				}
			}
		}
	}
	return found
}

// sources returns the sources attribute of a volume that shows whole objects.
func sources(w *world, required, optional, canaries []string) string {
	var all []string
	for i, name := range slices.Concat(required, optional, canaries) {
		ref := w.objects[name]
		kind, more := "configMap", ""
		if ref.Kind == volume.Secret {
			kind = "secret"
		}
		if ref.Namespace != namespace {
			more = ", namespace: " + ref.Namespace
		}
		switch {
		case i >= len(required)+len(optional):
			more += ", canary: true"
		case i >= len(required):
			more += ", optional: true"
		}
		all = append(all, fmt.Sprintf("{%s: {name: %s%s}}", kind, name, more))
	}
	return "[" + strings.Join(all, ", ") + "]"
}
