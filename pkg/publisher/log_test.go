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

func TestNoValueLeavesTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
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

		text := e.encoded(r)
		if err := leak.Check("the record", text); err != nil || text == "" || len(e.logs.With("")) < 3 {
			t.Errorf("there was nothing to search, or too much: %v", err)
		}
		e.searchAll()
	})
}

const (
	logFails  = "Volume does not show what it should"
	logAgain  = "Volume is current again"
	logOthers = "Lines about the volumes of a pod were left out"
	// ofKeyA is the attribute sources of volumes that need the key a.
	ofKeyA = "- configMap: {name: app, items: [{key: a, path: a}]}"
)

// Volumes of a pod that fail in the same way at the same time are one line, and so is the end of that. Another pod has its own.
func TestVolumesThatFailTogetherAreOneLine(t *testing.T) {
	inBubble(t, func(e *env) {
		const volumes = 128
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.inOnePod("many", volumes, "sources", ofKeyA)...)
		e.publish(e.request("alone", "sources", ofKeyA))
		for round := range 3 {
			e.update(configMap("app"), "b", "1")
			e.update(configMap("app"), "a", "1")
			for _, text := range []string{logFails, logAgain} {
				e.wantLines(round+1, text, `pod="shop/pod-many"`, `volumeID="many-`, `volume="settings-`, "volumes=128\n")
				e.wantLines(2*(round+1), text)
			}
		}
		e.wantLines(0, "A mounted volume is not updated")
	})
}

// The lines about one volume have no number.
func TestTheLinesOfOneVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		const names = ` volumeID="v1" pod="shop/pod-v1" volume="settings"` + "\n"
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1", "sources", ofKeyA))
		if lines := e.logs.With("Published volume"); len(lines) != 1 || !strings.Contains(lines[0], ` pod="shop/pod-v1"`) { // also in the first reconcile
			t.Errorf("the log has %q", lines)
		}
		e.update(configMap("app"), "b", "1")
		e.update(configMap("app"), "a", "1")
		var got []string
		for _, line := range append(e.logs.With(logFails), e.logs.With(logAgain)...) {
			_, text, _ := strings.Cut(line, "] ")
			got = append(got, line[:1]+" "+text)
		}
		want := []string{
			`E "` + logFails + `" err="sources[0].configMap: ConfigMap \"shop/app\": configmap references non-existent config key: a (it has b)"` + names,
			`I "` + logAgain + `"` + names,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
	})
}

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
		begin, before := time.Now(), 0
		for minute := range 3 {
			for time.Since(begin) < time.Duration(minute+1)*time.Minute {
				e.objects.put(configMap("app"), "b", "1")
				after(200 * time.Millisecond)
				e.objects.put(configMap("app"), "a", "1")
				after(200 * time.Millisecond)
			}
			synctest.Wait()
			lines := len(e.logs.With(logFails)) + len(e.logs.With(logAgain))
			if lines-before != 60 {
				t.Errorf("minute %d has %d lines, want 60", minute, lines-before)
			}
			if n := len(e.logs.With(logOthers, `pod="shop/pod-loud" podUID="uid-loud"`)); n != minute+1 {
				t.Errorf("%d lines say that others are missing, want %d", n, minute+1)
			}
			before = lines
		}
		if leftOut < 600 {
			t.Errorf("%d lines were left out", leftOut)
		}
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

// A worker whose volumes take long does not keep its news for more than about a second.
func TestNewsOfAWorkerThatDoesNotRest(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.inOnePod("slow", 4)...)
		e.writes.set(func() error { after(600 * time.Millisecond); return unix.EIO }, nil)
		e.objects.put(configMap("app"), "a", "2")
		after(1900 * time.Millisecond) // three have failed, a second after the first one
		synctest.Wait()
		if lines := e.logs.With(logFails); len(lines) != 1 || !strings.HasSuffix(lines[0], "volumes=3\n") {
			t.Errorf("the log has %q", lines)
		}
		e.writes.set(nil, nil)
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
