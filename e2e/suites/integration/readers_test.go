package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestReadersDuringUpdates has readers read volumes of three objects while these change all the time, and
// while the plugin is killed and stopped by turns. Nobody sees a part of a version, two versions of an
// object in one generation, an older version, or a file too few.
func TestReadersDuringUpdates(t *testing.T) {
	const volumes, readers, restartEvery = 6, 4, 6
	n, sum := &supervisedNode{node: newNode(t, "-v=2")}, newTally()
	shown, witnesses := map[*killing]*harness.Volume{}, [readers][]*witness{}
	for i := range volumes {
		s := &shape{name: fmt.Sprint("volume ", i), strategy: "Atomic"}
		for j, kind := range []string{"configMap", "configMap", "secret"} {
			s.objects = append(s.objects, &object{kind: kind, name: fmt.Sprintf("o%d-%d", i, j), padding: strings.Repeat(n.canary(), 10)})
		}
		k := &killing{supervisedNode: n, shape: s, tally: sum}
		k.change()
		shown[k] = k.newVolume()
		k.mustPublish(shown[k])
		for j := range readers / 2 { // each volume has two
			reader := (2*i + j) % readers
			witnesses[reader] = append(witnesses[reader], newWitness(s, n.Target(shown[k]), false, &sum.reads))
		}
	}
	var readings []*reading
	for _, w := range witnesses {
		readings = append(readings, startReading(t, 3*time.Millisecond, w...))
	}
	updates, kills, stops := 0, 0, 0
	update := func() {
		for k := range shown {
			k.change()
			updates += len(k.shape.objects)
		}
	}
	for round := range harness.Scaled(24, 2000) {
		update()
		switch {
		case round%restartEvery != 0:
			continue
		case kills > stops:
			if err := n.Terminate(t.Context()); err != nil {
				t.Fatal(err)
			}
			stops++
		default:
			n.mustKill()
			kills++
		}
		update()
		n.mustStart()
	}
	for k, v := range shown {
		k.becomesCurrent(v)
	}
	for _, r := range readings {
		if err := r.finish(); err != nil {
			t.Errorf("a reader saw: %v", err)
		}
	}
	t.Logf("%d updates, %d kills and %d stops; %s", updates, kills, stops, &sum.reads)
	if err := sum.reads.check(); err != nil || sum.reads.newer.Load() < int64(updates/10) || sum.reads.replaced.Load() < int64(updates/50) {
		t.Errorf("the readers saw too little: %s", &sum.reads)
	}
	for k, v := range shown {
		k.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// TestNeverVisibleAndIncomplete looks at the targets all the time while volumes are
// published: a target that is a mount must show everything from the first look on.
func TestNeverVisibleAndIncomplete(t *testing.T) {
	n := newNode(t)
	data := make(map[string]string)
	for i := range 50 {
		data[fmt.Sprint("key", i)] = n.canary()
	}
	n.configMap("app", data)
	const want, most = 3, 300 // looks that come after the answer prove nothing
	seen, published := 0, 0
	for ; seen < want && published < most; published++ {
		v := n.short("app")
		answer := n.publishing(v)
		for mounted := false; !mounted; {
			var target, parent unix.Stat_t // both may be on a tmpfs, where /tmp is one
			isAnswered := len(answer) > 0
			if unix.Stat(n.Target(v), &target) != nil || unix.Stat(filepath.Dir(n.Target(v)), &parent) != nil || target.Dev == parent.Dev {
				if isAnswered {
					t.Fatalf("nothing is mounted after the publish, whose error is: %v", n.answer(answer, soon))
				}
				continue
			}
			mounted = true
			files, err := harness.Files(n.Target(v))
			if err != nil || len(files) != len(data) {
				t.Fatalf("%d files show at the first look, %v, want %d", len(files), err, len(data))
			}
			if len(answer) == 0 {
				seen++
			}
		}
		if err := n.answer(answer, soon); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d volumes were seen before the answer of their publish", seen, published)
	if seen < want {
		t.Errorf("only %d of %d volumes were seen before the answer of their publish", seen, published)
	}
}
