// Package receipts tests what becomes of an opened file: the receipt in the plugin's status, and the events that a watcher of the
// volume sees.
package receipts

import (
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/world"
)

// lab is set by TestMain, and constant from then on.
var lab *world.Lab

func TestMain(m *testing.M) { os.Exit(world.Main(m, &lab)) }
