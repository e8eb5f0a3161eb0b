package writer

import (
	"fmt"
	"testing"

	"github.com/refvol/refvol/internal/leak"
)

// TestWriterHidesContent: what a writer is holds none of the files. (The errors are those of TestFaults.)
func TestWriterHidesContent(t *testing.T) {
	for _, o := range []Options{{}, {InPlace: true}} {
		v, w := newVolume(t), New(o)
		after := tree(withMode(0o600, file("d/key", leak.Value)), file("new/d", leak.Value))
		result, err := w.Write(t.Context(), v.root, after)
		if err != nil {
			t.Fatal(err)
		}
		if leaked := leak.Check("what the writer shows", fmt.Sprintf("%v %+v %#v %+v", result, w, w, after)); leaked != nil {
			t.Error(leaked)
		}
	}
}
