package harness

import (
	"os"
	"testing"
)

func TestLiveHeapIsTheLastCollections(t *testing.T) {
	p := &Plugin{opts: PluginOptions{Dir: t.TempDir()}}
	log := "gc 1 @0.012s 3%: 0.014+1.1+0.002 ms clock, 0.02+0.4/0.5/0+0.005 ms cpu, 4->5->2 MB, 4 MB goal, 0 MB stacks, 0 MB globals, 2 P\n" +
		"I1121 something else: gc 9 @ 1->2->3 MB, \n" +
		"gc 2 @1.234s 3%: 0.014+1.1+0.002 ms clock, 0.02+0.4/0.5/0+0.005 ms cpu, 14->15->12 MB, 14 MB goal, 0 MB stacks, 0 MB globals, 2 P (forced)\n"
	if err := os.WriteFile(p.LogPath(), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, mib, err := p.LiveHeap(); n != 2 || mib != 12 || err != nil {
		t.Errorf("got %d collections and %d MiB, %v, want 2 and 12", n, mib, err)
	}
	p.logged = int64(len(log)) // by an earlier run of the process
	if n, _, err := p.LiveHeap(); n != 0 || err != nil {
		t.Errorf("after a restart got %d collections, %v, want none", n, err)
	}
	p.logged = 0
	if err := os.WriteFile(p.LogPath(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, mib, err := p.LiveHeap(); n != 0 || mib != 0 || err != nil {
		t.Errorf("of an empty log got %d collections and %d MiB, %v, want none", n, mib, err)
	}
}
