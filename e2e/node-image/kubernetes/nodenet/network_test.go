package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteConfig(t *testing.T) {
	dir := t.TempDir()
	for _, cidr := range []string{"10.244.1.0/24", "10.244.2.0/24", "10.244.2.0/24"} {
		if err := writeConfig(dir, cidr, 1400); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, confFile))
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Plugins []struct {
				Type string
				MTU  int
				IPAM struct {
					Ranges [][]struct{ Subnet string }
				}
			}
		}
		if err := json.Unmarshal(data, &config); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		ptp := config.Plugins[0]
		if ptp.Type != "ptp" || ptp.MTU != 1400 || ptp.IPAM.Ranges[0][0].Subnet != cidr {
			t.Errorf("for %s wrote %s", cidr, data)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}
