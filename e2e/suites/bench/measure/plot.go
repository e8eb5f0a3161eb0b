package measure

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// WritePlot draws, as an SVG, how long a change takes to the file that a container reads: the kubelet's volumes and
// refvol's, from the median to the slowest, on a logarithmic axis. The ink reads on light and on dark pages.
func (f File) WritePlot(path string) error {
	ink, mark := color.Gray{Y: 0x80}, color.RGBA{R: 0x32, G: 0x6c, B: 0xe5, A: 0xff}
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.X.Scale, p.X.Tick.Marker, p.X.Min, p.X.Max = plot.LogScale{}, decades{}, 1, 1e6
	p.X.Label.Text = "from a change of a ConfigMap to the file that a container reads"
	p.Y.Min, p.Y.Max = -0.6, 1.6
	rows := []struct{ name, result string }{{"kubelet", "native.kubelet_ms"}, {"refvol", "native.refvol_ms"}}
	p.NominalY(rows[0].name, rows[1].name)
	for i, row := range rows {
		found := slices.IndexFunc(f.Results, func(r Result) bool { return r.Name == row.result })
		if found < 0 || f.Results[found].P50 == nil || f.Results[found].Max == nil {
			return fmt.Errorf("%s: no such result", row.result)
		}
		r := f.Results[found]
		line, points, err := plotter.NewLinePoints(plotter.XYs{{X: *r.P50, Y: float64(i)}, {X: *r.Max, Y: float64(i)}})
		if err != nil {
			return err
		}
		line.Color, line.Width, points.Color, points.Shape = mark, vg.Points(4), mark, draw.CircleGlyph{}
		text, err := plotter.NewLabels(plotter.XYLabels{
			XYs:    plotter.XYs{{X: *r.P50, Y: float64(i) + 0.18}},
			Labels: []string{fmt.Sprintf("median %s, slowest of %d %s", duration(*r.P50), r.N, duration(*r.Max))},
		})
		if err != nil {
			return err
		}
		text.TextStyle[0].Color = ink
		p.Add(line, points, text)
	}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Label.TextStyle.Color, axis.Tick.Label.Color, axis.Tick.Color = ink, ink, ink, ink
	}
	canvas := vgsvg.New(16*vg.Centimeter, 5*vg.Centimeter)
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// decades marks each power of ten with a time that people read.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(least, most float64) (ticks []plot.Tick) {
	const last = 1e5 // beyond it is room for a label
	for at := 1.0; at <= min(most, last); at *= 10 {
		if at >= least {
			ticks = append(ticks, plot.Tick{Value: at, Label: duration(at)})
		}
	}
	return ticks
}

// duration writes milliseconds.
func duration(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.3g s", ms/1000)
	default:
		return fmt.Sprintf("%.3g ms", ms)
	}
}
