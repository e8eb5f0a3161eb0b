package harness

import (
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/must"
)

func TestMain(m *testing.M) {
	os.Exit(Main(m, nil))
}

func TestStockNamesWhatIsNew(t *testing.T) {
	before := must.Get(takeStock())(t)
	f := must.Get(os.Open("/dev/null"))(t)
	defer f.Close()
	after := must.Get(takeStock())(t)
	if err := added(before, after); err == nil || !strings.Contains(err.Error(), "1 leaked file descriptor: /dev/null") {
		t.Errorf("an open file: %v, want it named", err)
	}
	if err := added(after, before); err != nil {
		t.Errorf("a closed file: %v", err)
	}
}
