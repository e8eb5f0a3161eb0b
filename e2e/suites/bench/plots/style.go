package main

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width      = 18 * vg.Centimeter
	plotHeight = 9 * vg.Centimeter
	margin     = 0.4 * vg.Centimeter
	lineHeight = 0.55 * vg.Centimeter
	fontSize   = vg.Length(10)
)

// Colours that the colour-blind can tell from each other, for lines and for their words.
func blue() color.Color   { return color.RGBA{R: 0x00, G: 0x5f, B: 0xa8, A: 0xff} }
func sky() color.Color    { return color.RGBA{R: 0x4d, G: 0xa6, B: 0xe0, A: 0xff} }
func orange() color.Color { return color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff} }
func grey() color.Color   { return color.Gray{Y: 0x70} }
func ink() color.Color    { return color.Gray{Y: 0x30} }
func faint() color.Color  { return color.Gray{Y: 0xe4} }

// series is one line of a drawing and its words in the legend.
type series struct {
	label string
	xys   plotter.XYs
	color color.Color
	// dashed is for what is not of this project but a bound.
	dashed bool
	// dots marks each point.
	dots bool
}

// drawing is a plot with its legend below, where it covers no line.
type drawing struct {
	*plot.Plot
	legend  plot.Legend
	entries int
}

// newDrawing returns a plot with axes and a grid, and nothing in it.
func newDrawing(title, x, y string) *drawing {
	d := &drawing{Plot: plot.New(), legend: plot.NewLegend()}
	d.Title.Text, d.X.Label.Text, d.Y.Label.Text = title, x, y
	for _, style := range []*text.Style{
		&d.Title.TextStyle, &d.X.Label.TextStyle, &d.Y.Label.TextStyle,
		&d.X.Tick.Label, &d.Y.Tick.Label, &d.legend.TextStyle,
	} {
		style.Font.Variant, style.Font.Size, style.Color = "Sans", fontSize, ink()
	}
	d.Title.TextStyle.Font.Size = fontSize + 2
	d.Title.Padding = margin
	for _, axis := range []*plot.Axis{&d.X, &d.Y} {
		axis.Label.Padding = margin / 2
		axis.Color, axis.Tick.Color = grey(), grey()
		axis.Padding = 0
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faint(), faint()
	d.Add(grid)
	d.legend.ThumbnailWidth = 2 * lineHeight
	d.legend.Padding = 0.15 * vg.Centimeter
	d.legend.Left, d.legend.Top = true, true
	d.legend.YOffs = -margin / 2
	return d
}

// draw adds a line and its entry in the legend.
func (d *drawing) draw(s series) error {
	line, err := plotter.NewLine(s.xys)
	if err != nil {
		return fmt.Errorf("%s: %w", s.label, err)
	}
	line.Color, line.Width = s.color, vg.Points(1.5)
	if s.dashed {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	d.Add(line)
	thumbnails := []plot.Thumbnailer{line}
	if s.dots {
		dots, err := plotter.NewScatter(s.xys)
		if err != nil {
			return fmt.Errorf("%s: %w", s.label, err)
		}
		dots.Color, dots.Shape, dots.Radius = s.color, draw.CircleGlyph{}, vg.Points(2.5)
		d.Add(dots)
		thumbnails = append(thumbnails, dots)
	}
	d.legend.Add(s.label, thumbnails...)
	d.entries++
	return nil
}

func (d *drawing) height() vg.Length {
	return plotHeight + lineHeight*vg.Length(d.entries) + margin
}

// on draws everything on a canvas of the drawing's size.
func (d *drawing) on(canvas vg.CanvasSizer) {
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	below := d.height() - plotHeight
	d.Draw(draw.Crop(c, margin, -2*margin, below, -margin))
	d.legend.Draw(draw.Crop(c, 4*margin, -margin, 0, -plotHeight))
}

// writeSVG writes a drawing whole or not at all.
func writeSVG(path string, d *drawing) error {
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, d.height()))
	d.on(canvas)
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Few have the font that the library knows; these have letters of the same width.
	const family = "font-family:Liberation Sans"
	text := bytes.ReplaceAll(svg.Bytes(), []byte(family+";"), []byte(family+", Arial, Helvetica, sans-serif;"))
	temporary := path + ".tmp"
	err := os.WriteFile(temporary, text, 0o644)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	return err
}

// timeTicks are those of an axis of milliseconds on a logarithmic scale.
type timeTicks struct{}

// Ticks labels the powers of ten and has three more between them.
func (timeTicks) Ticks(least, most float64) []plot.Tick {
	labels := map[int]string{-3: "1 µs", -2: "10 µs", -1: "0.1 ms", 0: "1 ms", 1: "10 ms", 2: "100 ms", 3: "1 s", 4: "10 s", 5: "100 s", 6: "1,000 s"}
	var ticks []plot.Tick
	for power := -3; power <= 6; power++ {
		unit := pow10(power)
		ticks = append(ticks, plot.Tick{Value: unit, Label: labels[power]})
		for _, n := range []float64{2, 5} {
			ticks = append(ticks, plot.Tick{Value: n * unit})
		}
	}
	return slices.DeleteFunc(ticks, func(t plot.Tick) bool { return t.Value < least || t.Value > most*1.0001 })
}

func pow10(n int) float64 {
	unit := 1.0
	for range max(n, -n) {
		unit *= 10
	}
	if n < 0 {
		return 1 / unit
	}
	return unit
}

// steps are ticks at every multiple of a step.
type steps struct {
	every  float64
	format string
}

// Ticks labels every multiple from least to most.
func (s steps) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for v := least; v <= most*1.0001; v += s.every {
		ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf(s.format, v)})
	}
	return ticks
}
