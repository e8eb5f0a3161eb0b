package main

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// least is where the axis of a distribution begins, in milliseconds. What took less,
// or is the difference of two moments that came the other way round, is drawn there.
const least = 0.01

// distribution is a result whose samples are drawn.
type distribution struct {
	name, label string
	color       color.Color
	dashed      bool
}

// latency draws how long updates take, with the floor below them and the kubelet's own
// volumes far above.
func latency(d *data) (*drawing, error) {
	return distributions(d, "How long an update takes to arrive", []distribution{
		{"update.added_ms", "refvol's part: from the watch event to the file", blue(), false},
		{"update.write_to_watch_ms", "the floor: from the write to a bare watch's event", grey(), true},
		{"update.write_to_file_ms", "from the write to the file", sky(), false},
		{"native.refvol_ms", "on a kind cluster, refvol: from the write to the file", sky(), true},
		{"native.kubelet_ms", "on a kind cluster, the kubelet's own volume", orange(), false},
	})
}

// publish draws how long NodePublishVolume takes.
func publish(d *data) (*drawing, error) {
	return distributions(d, "How long a publish takes", []distribution{
		{"publish.floor_ms", "the floor: mount and write alone", grey(), true},
		{"publish.warm_ms", "warm: the object is watched already", blue(), false},
		{"publish.cold_ms", "cold: the object has to be read first", orange(), false},
	})
}

// distributions draws the share of samples that took no longer than each time.
func distributions(d *data, title string, list []distribution) (*drawing, error) {
	all, err := collect(list, func(l distribution) ([]float64, error) { return d.all(l.name) })
	if err != nil {
		return nil, err
	}
	drawing := newDrawing(title, "time, logarithmic", "share of all, %")
	most := 0.0
	for i, l := range list {
		label := fmt.Sprintf("%s (p50 %s, p99 %s)", l.label,
			duration(measure.Percentile(all[i], 50)), duration(measure.Percentile(all[i], 99)))
		if err := drawing.draw(series{label: label, xys: shares(all[i]), color: l.color, dashed: l.dashed}); err != nil {
			return nil, err
		}
		most = max(most, all[i][len(all[i])-1])
	}
	drawing.X.Min, drawing.X.Max = least, math.Pow(10, math.Ceil(math.Log10(max(most, 10*least))))
	drawing.X.Scale, drawing.X.Tick.Marker = plot.LogScale{}, timeTicks{}
	drawing.Y.Min, drawing.Y.Max, drawing.Y.Tick.Marker = 0, 100, steps{25, "%.0f"}
	return drawing, nil
}

// mostPoints is how many points a line has: more can't be seen.
const mostPoints = 400

// shares returns the cumulative distribution of sorted samples as a staircase.
func shares(sorted []float64) plotter.XYs {
	xys := plotter.XYs{{X: max(sorted[0], least), Y: 0}}
	n := min(len(sorted), mostPoints)
	for i := 1; i <= n; i++ {
		x := max(sorted[i*len(sorted)/n-1], least)
		last := xys[len(xys)-1]
		xys = append(xys, plotter.XY{X: x, Y: last.Y}, plotter.XY{X: x, Y: 100 * float64(i) / float64(n)})
	}
	return xys
}

// duration words milliseconds in about two digits.
func duration(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.3g s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2g ms", ms)
}

// memory draws what the plugin's process takes, and a bare program of the same watches.
func memory(d *data) (*drawing, error) {
	counts := []int{0, 100, 1000, 5000}
	line := func(name string) (plotter.XYs, error) {
		return collect(counts, func(n int) (plotter.XY, error) {
			bytes, err := d.value(fmt.Sprintf("memory.%s_rss_%d", name, n))
			return plotter.XY{X: float64(n), Y: bytes / (1 << 20)}, err
		})
	}
	lines, err := collect([]string{"refvol", "reference"}, line)
	if err != nil {
		return nil, err
	}
	drawing := newDrawing("Memory over volumes of one object each", "volumes", "resident memory, MiB")
	for _, s := range []series{
		{label: "refvol", xys: lines[0], color: blue(), dots: true},
		{label: "a bare program with as many client-go reflectors", xys: lines[1], color: grey(), dashed: true, dots: true},
	} {
		if err := drawing.draw(s); err != nil {
			return nil, err
		}
	}
	drawing.X.Min, drawing.X.Max, drawing.X.Tick.Marker = 0, 5000, steps{1000, "%.0f"}
	every := niceStep(drawing.Y.Max)
	drawing.Y.Min, drawing.Y.Max, drawing.Y.Tick.Marker = 0, math.Ceil(drawing.Y.Max/every)*every, steps{every, "%.0f"}
	return drawing, nil
}

// burst draws when the volumes of many pods that start at once were up.
func burst(d *data) (*drawing, error) {
	times, err := d.all("publish.burst_ms")
	if err != nil {
		return nil, err
	}
	up := plotter.XYs{{X: 0, Y: 0}}
	for i, ms := range times {
		up = append(up, plotter.XY{X: ms, Y: float64(i)}, plotter.XY{X: ms, Y: float64(i + 1)})
	}
	n := float64(len(times))
	drawing := newDrawing(fmt.Sprintf("%d volumes at once", len(times)), "time since the first request, ms", "volumes that are up")
	label := fmt.Sprintf("refvol (all up after %s)", duration(times[len(times)-1]))
	if err := drawing.draw(series{label: label, xys: up, color: blue()}); err != nil {
		return nil, err
	}
	x, y := niceStep(times[len(times)-1]), niceStep(n)
	drawing.X.Min, drawing.X.Max, drawing.X.Tick.Marker = 0, math.Ceil(times[len(times)-1]/x)*x, steps{x, "%.0f"}
	drawing.Y.Min, drawing.Y.Max, drawing.Y.Tick.Marker = 0, math.Ceil(n/y)*y, steps{y, "%.0f"}
	return drawing, nil
}

// niceStep returns a round step of which about five or six make an axis that ends at most.
func niceStep(most float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(max(most, 1e-9)/5)))
	for _, n := range []float64{1, 2, 5} {
		if most/(n*unit) <= 7 {
			return n * unit
		}
	}
	return 10 * unit
}
