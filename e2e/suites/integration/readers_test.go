package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
	for round := range harness.Scaled(24, 6000) {
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
	t.Logf("%d updates, %d kills and %d stops; %s, %d of a generation that the reader had not seen", updates, kills, stops, &sum.reads, sum.reads.newer.Load())
	if err := sum.reads.check(); err != nil || sum.reads.newer.Load() < int64(updates/10) {
		t.Errorf("the readers saw too little: %v", err)
	}
	for k, v := range shown {
		k.mustUnpublish(v)
	}
	n.wantNothingLeft()
}
