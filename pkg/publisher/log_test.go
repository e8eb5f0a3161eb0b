package publisher

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

func TestDescribe(t *testing.T) {
	app, db := configMap("app"), secret("db")
	const want = "ConfigMap shop/app at 7, Secret shop/db not shown"
	if got := describe([]volume.Ref{app, db}, record.Versions{app: {ResourceVersion: "7"}}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The log says which objects an update is for, and how they have changed.
func TestWhatChanged(t *testing.T) {
	app, db := configMap("app"), secret("db")
	before := record.Versions{app: {UID: "1", ResourceVersion: "7"}, db: {UID: "2", ResourceVersion: "8"}}
	const removed = "its files were removed"
	for want, test := range map[string]struct {
		before, now record.Versions
		withdrawn   bool
	}{
		"the files differed from what they should show":                                               {before: before, now: before},
		"Secret shop/db changed, it was at 8":                                                         {before: before, now: record.Versions{app: before[app], db: {UID: "2", ResourceVersion: "9"}}},
		"Secret shop/db was deleted and created again":                                                {before: before, now: record.Versions{app: before[app], db: {UID: "3", ResourceVersion: "9"}}},
		"Secret shop/db was not shown before":                                                         {before: record.Versions{app: before[app]}, now: before},
		"Secret shop/db was deleted, " + removed:                                                      {before: before, now: record.Versions{app: before[app]}},
		"Secret shop/db is refused to the pod, or may share a file with a refused object: " + removed: {before: before, now: record.Versions{app: before[app]}, withdrawn: true},
		"ConfigMap shop/app was deleted, " + removed + ", Secret shop/db was deleted, " + removed:     {before: before},
		"ConfigMap shop/app was not shown before, Secret shop/db is refused to the pod, or may share a file with a refused object: " + removed: {
			before: record.Versions{db: before[db]}, now: record.Versions{app: before[app]}, withdrawn: true,
		},
	} {
		now := &files{Record: record.Record{Shown: test.now}, withdrawn: map[volume.Ref]bool{db: test.withdrawn}}
		if got := now.whatChanged([]volume.Ref{app, db}, test.before); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A text about many objects names some of them, and how many more there are.
func TestEnumerate(t *testing.T) {
	for n, want := range map[int]string{maxDescribed: "", maxDescribed + 1: ", 1 more", maxDescribed + 700: ", 700 more"} {
		refs := make([]volume.Ref, n)
		for i := range refs {
			refs[i] = configMap(fmt.Sprint("app", i))
		}
		got := enumerate(refs, func(volume.Ref) string { return "changed" })
		if count := strings.Count(got, " changed"); count != maxDescribed || !strings.HasSuffix(got, "changed"+want) {
			t.Errorf("%d are named: %s", count, got)
		}
	}
}

func TestLog(t *testing.T) { each(t, inBubble, logTests) }

var logTests = map[string]func(e *env){
	"no value leaves the volume": func(e *env) {
		e.objects.put(secret("db"), "password", canary, "long", canary+pages(1))
		r := e.publishNew("v1", "secret", "db")
		e.update(secret("db"), "password", canary+"2")
		e.wantFiles(r, "password", canary+"2")
		// The failures whose texts come near to values.
		e.writes.set(func() error { return errFault }, nil)
		e.update(secret("db"), "password", canary+"3")
		e.writes.set(nil, nil)
		e.update(secret("db"), "password", canary+pages(300))
		e.wantProblem(r, "bytes of memory")
		e.restart()
		e.remove(secret("db"))
		e.wantProblem(r, "not found")
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "secret", "db", "items", "[{key: x, path: x}]")), failure.ReasonNotFound, "")

		text := e.recordOf(r).Encode()
		if err := leak.Check("the record", text); err != nil || text == "" || len(e.logs.With("")) < 3 {
			e.Errorf("there was nothing to search, or too much: %v", err)
		}
		e.wantNoLeak()
	},
	"volumes of a pod that fail alike at one time are one line, and so is the end of that: another pod has its own, without a number": func(e *env) {
		const volumes = 128
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.inOnePod("many", volumes, "sources", ofKeyA)...)
		e.wantLines(volumes, "Published volume", `pod="shop/pod-many"`) // it is named in the first reconcile, too
		e.publish(e.request("alone", "sources", ofKeyA))
		for round := range 3 {
			e.update(configMap("app"), "b", "1")
			e.update(configMap("app"), "a", "1")
			for _, text := range []string{logFails, logAgain} {
				e.wantLines(round+1, text, `pod="shop/pod-many"`, `volumeID="many-`, `volume="settings-`, "volumes=128\n")
				e.wantLines(2*(round+1), text)
			}
			for severity, text := range map[string]string{
				"E": `"` + logFails + `" err="sources[0].configMap: ConfigMap \"shop/app\": configmap references non-existent config key: a (it has b)"`,
				"I": `"` + logAgain + `"`,
			} {
				lines := e.logs.With(text + ` volumeID="alone" pod="shop/pod-alone" volume="settings"` + "\n")
				if len(lines) != round+1 || lines[round][:1] != severity {
					e.Errorf("%d lines with %s, want %d of severity %s: %q", len(lines), text, round+1, severity, lines)
				}
			}
		}
		e.wantLines(0, "A mounted volume is not updated")
	},
	"a worker whose volumes take long does not keep its news for more than about a second": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.inOnePod("slow", 4)...)
		e.writes.set(func() error { after(600 * time.Millisecond); return unix.EIO }, nil)
		e.objects.put(configMap("app"), "a", "2")
		after(1900 * time.Millisecond) // three have failed, a second after the first one
		synctest.Wait()
		if lines := e.logs.With(logFails); len(lines) != 1 || !strings.HasSuffix(lines[0], "volumes=3\n") {
			e.Errorf("the log has %q", lines)
		}
		e.writes.set(nil, nil)
	},
	"the author gets an event at once for what the publish waits for, again after each change, and none after the publish": func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}]}}, {secret: {name: db}}]")
		waiting := e.waiting(r)
		e.wantEvents(r.Pod.String() + `: RefNotFound: sources[0].configMap: ConfigMap "shop/app" not found; sources[1].secret: Secret "shop/db" not found`)
		e.p.table.objectChanged(volume.ServiceAccount{}, configMap("app")) // nothing new
		e.wantEvents()
		e.objects.put(configMap("app"), "b", "1")
		e.wantEvents(`RefKeyNotFound: sources[0].configMap: ConfigMap "shop/app": configmap references non-existent config key: a`)
		e.objects.put(configMap("app"), "a", "1")
		e.wantEvents(`RefNotFound: sources[1].secret: Secret "shop/db" not found`)
		e.objects.put(secret("db"), "password", canary)
		e.wantDone(waiting)
		e.settle()
		e.wantProblem(r, "")
		e.wantEvents()
	},
	"while a volume is mounted there is one event per change of its condition, however many reconciles or resyncs find it": func(e *env) {
		e.objects.put(secret("db"), "password", canary)
		r := e.publishNew("v1", "secret", "db", "items", "[{key: password, path: p}]")
		e.objects.remove(secret("db"))
		e.wantEvents(`RefDeleted: secret: Secret "shop/db" not found`)
		after(3 * testResync)
		e.wantEvents()
		e.objects.put(secret("db"), "other", canary)
		e.wantEvents("RefKeyNotFound: secret: Secret \"shop/db\": references non-existent secret key: password")
		e.update(secret("db"), "password", canary+"2")
		e.wantFiles(r, "p", canary+"2")
		e.wantEvents()

		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(secret("db"), "password", canary+"3")
		e.wantEvents("VolumeUpdateFailed: write the files of volume v1: ")
		after(testResync)
		e.wantEvents()
		e.writes.set(nil, nil)
		after(testResync)
		e.wantEvents()
		e.wantProblem(r, "")

		e.objects.failWith(secret("db"), errForbiddenObject)
		e.wantEvents("RefForbidden: configmaps \"app\" is forbidden: no")
	},
}

const (
	logFails  = "Volume does not show what it should"
	logAgain  = "Volume is current again"
	logOthers = "Lines about the volumes of a pod were left out"
	// ofKeyA is the attribute sources of volumes that need the key a.
	ofKeyA = "- configMap: {name: app, items: [{key: a, path: a}]}"
)

// A pod whose volume is good and bad in turn has 60 lines a minute, and one more that says how many are missing. Other pods have theirs.
func TestLinesOfAPodAreLimited(t *testing.T) {
	inStoppedBubble(t, nil, func(e *env) {
		leftOut := 0
		e.opts.LogLimit = loglimit.New(klog.FromContext(e.ctx), func() { leftOut++ })
		defer e.opts.LogLimit.Close()
		e.start()
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(configMap("quiet"), "a", "1")
		e.publish(e.request("loud", "sources", ofKeyA))
		e.publish(e.request("quiet", "sources", strings.ReplaceAll(ofKeyA, "app", "quiet")))
		for begin := time.Now(); time.Since(begin) < time.Minute; {
			e.objects.put(configMap("app"), "b", "1")
			after(200 * time.Millisecond)
			e.objects.put(configMap("app"), "a", "1")
			after(200 * time.Millisecond)
		}
		synctest.Wait()
		if lines := len(e.logs.With(logFails)) + len(e.logs.With(logAgain)); lines != 60 || leftOut < 200 {
			t.Errorf("%d lines, want 60, and %d were left out", lines, leftOut)
		}
		e.wantLines(1, logOthers, `pod="shop/pod-loud" podUID="uid-loud"`)
		e.update(configMap("quiet"), "b", "1")
		e.wantLines(1, logFails, "pod-quiet")
	})
}

// The longest names make no long line.
func TestALineOfLongNames(t *testing.T) {
	inStoppedBubble(t, nil, func(e *env) {
		e.opts.LogLimit = loglimit.New(klog.FromContext(e.ctx), func() {})
		defer e.opts.LogLimit.Close()
		e.start()
		e.run()
		name := strings.Repeat("n", 253)
		sources, good, bad := "", []string{}, []string{}
		for i := range 32 {
			key := fmt.Sprintf("%03d", i) + strings.Repeat("k", 250)
			sources += fmt.Sprintf("- configMap: {name: %s, items: [{key: %s, path: \"%d\"}]}\n", name, key, i)
			good, bad = append(good, key, ""), append(bad, "b"+key[1:], "")
		}
		e.objects.put(configMap(name), good...)
		e.publish(e.request("v1", "sources", sources))
		e.update(configMap(name), bad...)
		lines := e.logs.With(logFails)
		if len(lines) != 1 || len(lines[0]) > 4096 {
			t.Fatalf("%d lines: %.5000q", len(lines), lines)
		}
		t.Logf("%d bytes", len(lines[0]))
	})
}

// Lines of one kind are one line. The last line that counts a volume has its last state.
func TestNews(t *testing.T) {
	var n news
	var got []string
	const a, b, c = "a", "b", "c"
	add := func(id, kind, text string) {
		n.add(id, newsLine{kind: kind, log: func(more ...any) { got = append(got, text+fmt.Sprint(more...)) }})
	}
	add(a, "fails", "a fails ")
	add(b, "fails", "b fails ")
	add(c, "lost", "c lost ")
	add(a, "well", "a well ")
	add(a, "fails", "a fails ")
	n.log()
	n.log()
	if want := []string{"a fails volumes2", "c lost ", "a well ", "a fails "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
