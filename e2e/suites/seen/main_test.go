// Package seen tests what others see of a plugin: its metrics, alerts and ports, and no value or token in any of them, nor in logs, events and
// dumps. Under SELinux, a volume is read by none but the containers that it is for.
package seen

import (
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/world"
)

// lab is set by TestMain, and constant from then on.
var lab *world.Lab

func TestMain(m *testing.M) { os.Exit(world.Main(m, &lab)) }
