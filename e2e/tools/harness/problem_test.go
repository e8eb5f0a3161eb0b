package harness

import "testing"

func TestProblemIn(t *testing.T) {
	const (
		fails = `E1122 07:00:00.000000       1 reconcile.go:230] "Volume does not show what it should" err="Secret \"shop/db\" not found" volumeID="csi-1" pod="shop/web"` + "\n"
		other = `E1122 07:00:00.000000       1 reconcile.go:230] "Volume does not show what it should" err="of another volume" volumeID="csi-12" pod="shop/web"` + "\n"
		lines = `E1122 07:00:00.000000       1 reconcile.go:230] "Volume does not show what it should" err=<` + "\n\tfirst\n\tsecond\n >" + ` volumeID="csi-1" pod="shop/web"` + "\n"
		again = `I1122 07:00:01.000000       1 reconcile.go:233] "Volume is current again" volumeID="csi-1" pod="shop/web"` + "\n"
		more  = `I1122 07:00:01.000000       1 server.go:1] "Serving" socket="/csi.sock"` + "\n"

		failsJSON = `{"ts":1.5,"caller":"publisher/reconcile.go:230","msg":"Volume does not show what it should","volumeID":"csi-1","pod":{"name":"web","namespace":"shop"},"err":"Secret \"shop/db\" not found"}` + "\n"
		againJSON = `{"ts":2.5,"caller":"publisher/reconcile.go:233","msg":"Volume is current again","v":0,"volumeID":"csi-1","pod":{"name":"web","namespace":"shop"}}` + "\n"
	)
	for name, tc := range map[string]struct{ log, want string }{
		"nothing":             {"", ""},
		"other lines":         {more + other, ""},
		"fails":               {more + fails + other + more, `Secret "shop/db" not found`},
		"several lines":       {fails + lines + more, "<\n\tfirst\n\tsecond\n >"},
		"current again":       {fails + more + again + other, ""},
		"fails again":         {lines + again + fails, `Secret "shop/db" not found`},
		"cut short":           {fails + again[:60], `Secret "shop/db" not found`},
		"JSON":                {failsJSON, `Secret "shop/db" not found`},
		"JSON, current again": {failsJSON + againJSON, ""},
		"JSON, cut short":     {failsJSON + againJSON[:90], `Secret "shop/db" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := problemIn(tc.log, "csi-1"); err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}
