package integration

import (
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// wantNonFinal checks that each call that failed did so in a way after which the kubelet
// goes on to take the volume for one that may be there.
func (b *burst) wantNonFinal() {
	b.t.Helper()
	for v, err := range b.failed {
		switch status.Code(err) {
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		default:
			b.t.Errorf("round %d: a call on %s failed with a final answer: %v", b.round, v.ID(), err)
		}
	}
	for _, v := range b.late {
		if b.failed[v] == nil {
			b.t.Errorf("round %d: the publish of %s did not fail, without its object", b.round, v.ID())
		}
	}
}

// wantNothingHalfMade looks at what the plugin left: each mount is complete, and there is
// nothing else.
func (b *burst) wantNothingHalfMade() {
	b.t.Helper()
	mounts, err := b.VolumeMounts()
	if err != nil {
		b.t.Fatal(err)
	}
	mounted := make(map[string]int, len(mounts))
	for _, m := range mounts {
		mounted[m.Target]++
	}
	there := make(map[*harness.Volume]bool)
	for _, volumes := range [][]*harness.Volume{b.late, b.comes, b.goes, b.stays} {
		for _, v := range volumes {
			if mounted[b.Target(v)] > 1 {
				b.t.Errorf("round %d: %d mounts at %s", b.round, mounted[b.Target(v)], b.Target(v))
			}
			there[v] = mounted[b.Target(v)] > 0
			delete(mounted, b.Target(v))
			b.wantWhole(v, there[v])
		}
	}
	for target := range mounted {
		b.t.Errorf("round %d: left of a volume that was unpublished: a mount at %s", b.round, target)
	}
	b.wantAsAnswered(there)
}

// wantAsAnswered compares what is there with the calls that succeeded.
func (b *burst) wantAsAnswered(there map[*harness.Volume]bool) {
	b.t.Helper()
	for _, v := range append(b.comes, b.stays...) {
		if b.failed[v] == nil && !there[v] {
			b.t.Errorf("round %d: %s was published and is not there", b.round, v.ID())
		}
	}
	for _, v := range b.goes {
		if b.failed[v] == nil && there[v] {
			b.t.Errorf("round %d: %s was unpublished and is there", b.round, v.ID())
		}
	}
	for _, v := range b.late {
		if there[v] {
			b.t.Errorf("round %d: %s is there, without its object", b.round, v.ID())
		}
	}
}

// maxGenerations is how many may be there: those of three seconds, 25 ms apart, and one that was being made.
const maxGenerations = 3*40 + 1

// wantWhole checks all that is at the place of a volume.
func (b *burst) wantWhole(v *harness.Volume, mounted bool) {
	b.t.Helper()
	if !mounted {
		if _, err := os.Lstat(b.Target(v)); !os.IsNotExist(err) {
			b.t.Errorf("round %d: left of a target that is not mounted: %s (%v)", b.round, b.Target(v), err)
		}
		return
	}
	entries, err := harness.List(b.Target(v))
	if err != nil {
		b.t.Fatal(err)
	}
	generations, links := map[string]map[string]string{}, 0
	for _, e := range entries {
		top, name, _ := strings.Cut(e.Path, "/")
		switch {
		case e.Path == "..data" || !strings.HasPrefix(top, ".."):
			links++
		case e.Mode.IsDir():
			generations[top] = map[string]string{}
		case generations[top] == nil:
			b.t.Errorf("round %d: %s holds %s", b.round, v.ID(), e.Path)
		default:
			generations[top][name] = e.Content
		}
	}
	if links != burstKeys+1 || len(generations) == 0 || len(generations) > maxGenerations {
		b.t.Errorf("round %d: %s has %d links and %d generations", b.round, v.ID(), links, len(generations))
	}
	for name, files := range generations {
		if len(files) != burstKeys {
			b.t.Errorf("round %d: generation %s of %s has %d files", b.round, name, v.ID(), len(files))
		}
		for _, value := range files {
			if value != files["key-0"] {
				b.t.Errorf("round %d: generation %s of %s mixes %q and %q", b.round, name, v.ID(), value, files["key-0"])
			}
		}
	}
}
