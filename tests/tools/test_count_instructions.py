"""Counting the instructions of a kernel's main loop in a disassembly."""

from __future__ import annotations

import count_instructions

# A loop over tiles with a mask that is jumped over, a copy that the last tile leaves out, and an inner loop of copies.
LISTING = """
.text.prefill_attention:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/              @P0  BRA `(.L_x_2) ;
        /*0030*/                   FSEL R4, R4, -INF , P1 ;
        /*0040*/                   FSEL R5, R5, -INF , P1 ;
.L_x_2:
        /*0050*/                   MUFU.EX2 R4, R4 ;
        /*0060*/              @P2  BRA `(.L_x_4) ;
.L_x_3:
        /*0070*/                   LDGSTS.E.BYPASS.128 [R3], desc[UR4][R6.64] ;
        /*0080*/                   IADD3 R6, R6, 0x10, RZ ;
        /*0090*/              @!P3 BRA `(.L_x_3) ;
.L_x_4:
        /*00a0*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*00b0*/              @P4  BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_5:
        /*00d0*/                   BRA `(.L_x_5);
"""


def test_a_round_has_all_copies_and_products_and_no_mask() -> None:
    counts = count_instructions.round_of(count_instructions.parse(LISTING.splitlines()), copies=8)
    assert counts == {"HMMA": 2, "MUFU": 1, "LDGSTS": 8, "IADD3": 8, "BRA": 2 + 8 + 1}


def test_without_copies_in_it_a_loop_counts_once() -> None:
    blocks = count_instructions.parse(LISTING.replace("LDGSTS", "STS").splitlines())
    assert count_instructions.round_of(blocks, copies=8) == {"HMMA": 2, "MUFU": 1, "BRA": 3}


def test_a_wait_that_lies_behind_the_loop_and_goes_back_into_it_is_no_loop_around_it() -> None:
    waiting = LISTING.replace(
        "FSEL R5, R5, -INF , P1 ;", "SYNCS.PHASECHK P5, [UR4] ;\n   /*0048*/  @!P5 BRA `(.L_x_5) ;"
    )
    waiting = waiting.replace("BRA `(.L_x_5);", "BRA `(.L_x_2);").replace("HMMA.16816", "HGMMA.64x128x16")
    counts = count_instructions.round_of(count_instructions.parse(waiting.splitlines()), copies=8)
    assert counts == {"HGMMA": 2, "MUFU": 1, "LDGSTS": 8, "IADD3": 8, "BRA": 2 + 8 + 1}
    before = waiting.replace("LDC R1, c[0x0][0x28] ;", "LDC R1, c[0x0][0x28] ;\n.L_x_9:\n   /*0008*/  NOP ;")
    before = before.replace("BRA `(.L_x_2);", "BRA `(.L_x_9);")
    assert count_instructions.round_of(count_instructions.parse(before.splitlines()), copies=8) == counts


def test_a_branch_of_threads_that_have_parted_goes_on_where_they_have_not() -> None:
    parted = LISTING.replace("@P2  BRA `(.L_x_4) ;", "BRA.DIV ~URZ, `(.L_x_4) ;")
    counts = count_instructions.round_of(count_instructions.parse(parted.splitlines()), copies=8)
    assert counts == {"HMMA": 2, "MUFU": 1, "LDGSTS": 8, "IADD3": 8, "BRA": 2 + 8 + 1}
